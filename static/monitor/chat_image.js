// An image that a user chose, small enough for a request. The engine reduces larger images too (image_max_pixels).
const MOST_BYTES = 600_000;
const SIDES = [1280, 896, 640];

// Returns the image as a data URL. Throws if the browser cannot read it.
export async function asDataUrl(file) {
  const bitmap = await createImageBitmap(file);
  if (file.size <= MOST_BYTES) return read(file);
  for (const side of SIDES) {
    const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
    const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
    if (blob.size <= MOST_BYTES) return read(blob);
  }
  throw new Error("the image is too large");
}

function read(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
