import js from "@eslint/js";
import globals from "globals";

export default [
  { ignores: ["**/.venv*/", "build/", "dist/"] },
  js.configs.recommended,
  { files: ["static/**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["tests/**/*.js"], languageOptions: { globals: globals.node } },
];
