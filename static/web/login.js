// Another tab has logged in, and says so (shell.js): this one gets in with it, and is led to its place.
new BroadcastChannel("megaboard").onmessage = () => location.replace(location.href);
