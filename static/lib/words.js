// Texts of the page in its language. The server sends the catalogue once.
const words = {};
let language = "en";

export function addWords(catalogue) {
  Object.assign(words, catalogue);
}

export function setLanguage(name) {
  language = name;
}

// The language of the page. Gradio sets the document's own language to that of the browser.
export const lang = () => language;

// Returns the text of a key, with {name} replaced by its value. An unknown key is returned as it is.
export function t(key, values) {
  const text = words[key];
  if (text === undefined) return key;
  return text.replace(/\{\{|\}\}|\{(\w+)\}/g, (all, name) => name ? values?.[name] ?? all : all[0]);
}

// Returns a text of the monitor.
export const w = (key, values) => t(`monitor.${key}`, values);

// Joins sentences, and items of a list, as the language does. Chinese has no space between sentences.
export const gap = () => language === "zh" ? "" : " ";
export const sentences = (parts) => parts.filter(Boolean).join(gap());
export const listed = (items) => items.filter(Boolean).join(language === "zh" ? "，" : ", ");
