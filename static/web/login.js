// When another tab has logged in (shell.js), this one reloads: it has the session too, and returns to its place.
new BroadcastChannel("megaboard").onmessage = () => location.replace(location.href);
