import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// Every browser reads the first of the three formats in which KaTeX has its fonts.
const woff2Only = {
  name: "woff2-only",
  enforce: "pre",
  transform: (code, id) => (id.endsWith("katex.min.css") ? code.replace(/,url\([^)]*\.(woff|ttf)\) format\("\w+"\)/g, "") : undefined),
};

export default defineConfig(({ command }) => ({
  plugins: [react(), woff2Only],
  base: command === "build" ? "/static/" : "/", // the app serves the built files at /static
  build: {
    outDir: "../{{ cookiecutter.package_name }}/static",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the content security policy permits no fonts in the styles
    chunkSizeWarningLimit: 1000,
  },
  // The app sets the cookie of a visitor with its page, which `npm run dev` serves instead.
  server: { proxy: { "/api": { target: "http://127.0.0.1:8000", headers: { cookie: "visitor=developer" } }, "/v1": "http://127.0.0.1:8000" } },
}));
