import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

export default defineConfig(({ command }) => ({
  plugins: [react()],
  base: command === "build" ? "/static/" : "/", // the app serves the built files at /static
  build: { outDir: "../{{ cookiecutter.package_name }}/static", emptyOutDir: true, chunkSizeWarningLimit: 1000 },
  // The app sets the cookie of a visitor with its page, which `npm run dev` serves instead.
  server: { proxy: { "/api": { target: "http://127.0.0.1:8000", headers: { cookie: "visitor=developer" } } } },
}));
