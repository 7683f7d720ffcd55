// Words of the page in its language. The server sends the catalogue once.
const words = {};
let language = "en";

export function addWords(catalogue) {
  Object.assign(words, catalogue);
}

export function setLanguage(name) {
  language = name;
}

// The language of the page. Gradio sets the document's own to that of the browser.
export const lang = () => language;

// The words of a key, with {name} replaced by its value. An unknown key stands for itself.
export function t(key, values) {
  const text = words[key];
  if (text === undefined) return key;
  return text.replace(/\{\{|\}\}|\{(\w+)\}/g, (all, name) => name ? values?.[name] ?? all : all[0]);
}

// The monitor's words.
export const w = (key, values) => t(`monitor.${key}`, values);

// Sentences and items of a list, joined as the language does. Chinese has no space between sentences.
export const gap = () => language === "zh" ? "" : " ";
export const sentences = (parts) => parts.filter(Boolean).join(gap());
export const listed = (items) => items.filter(Boolean).join(language === "zh" ? "，" : ", ");
