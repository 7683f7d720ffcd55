// The page's only entry. Gradio's own script runs after it, so all of this is ready when components mount.
import { setLanguage } from "./lib/words.js";
import "./web/frames.js";
import "./web/connection.js";
import { go } from "./web/shell.js";
import { attach, monitor } from "./monitor/monitor.js";
import { currentStep, latestPayload, sendToServer } from "./wizard/channel.js";
import { choosePlan, isSettled } from "./wizard/choices.js";
import { isResting } from "./wizard/draft.js";
import { goTo } from "./wizard/fields.js";
import { carrier, mounted, mountedTabs, panels, take } from "./wizard/wizard.js";

setLanguage(location.pathname.split("/")[1]);

// The only global. Scripts of Python's components call it, and tests read it.
window.Megaboard = {
  attachMonitor: attach,
  monitor,
  tabs: { mounted: mountedTabs },
  wizard: { payload: latestPayload, carrier, choose: choosePlan, isSettled, mounted, send: sendToServer,
    step: currentStep, take },
  draft: { isResting },
  fields: { goTo },
  panels,
  go,
};
