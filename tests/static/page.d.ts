// What TypeScript must know of the page to check static/: its globals, and that all its elements are HTML elements.
interface Window {
  Plotly: any;
  Megaboard: any;
}

interface ParentNode {
  querySelector<K extends keyof HTMLElementTagNameMap>(selectors: K): HTMLElementTagNameMap[K] | null;
  querySelector(selectors: string): any;
  querySelectorAll<K extends keyof HTMLElementTagNameMap>(selectors: K): NodeListOf<HTMLElementTagNameMap[K]>;
  querySelectorAll(selectors: string): NodeListOf<any>;
}

interface Document {
  addEventListener(type: `megaboard:${string}`, listener: (event: CustomEvent) => void, options?: { once?: boolean }): void;
}
