// When another tab has logged in (shell.js), this tab reloads: the session is shared, and the tab returns to its view.
new BroadcastChannel("megaboard").onmessage = () => location.replace(location.href);
