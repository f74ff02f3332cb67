"""Chats for clients of the Vercel AI SDK."""
