"""A page as a browser sees it: Chromium without a window, spoken to in its DevTools protocol over a pipe.

Nothing to install besides Chromium itself. It resolves no name of a host, so that a page cannot reach anything.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 60
WITHIN = ("file", "data", "about", "blob")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-default-browser-check"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
)
# Chromium reads from 3 and writes to 4.
START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
LOOK = """
document.fonts.ready
  .then(() => Promise.allSettled([...document.images].map((image) => image.decode())))
  .then(() => ({
    broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.getAttribute("src")),
    images: document.images.length,
    links: [...document.querySelectorAll("[href]")].map((link) => link.getAttribute("href")),
    ids: [...document.querySelectorAll("[id]")].map((part) => part.id),
    needed: document.documentElement.scrollWidth,
    front: document.querySelector(".front")?.getBoundingClientRect().height ?? null,
    text: document.body.innerText,
  }))
"""


def program():
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Seen:
    """`faults`: a phrase each. `front`: height of the first part in pixels."""

    faults: list[str]
    images: int
    links: list[str]
    front: float | None
    text: str
    pdf: bytes = b""


@dataclass
class Browser:
    process: subprocess.Popen
    profile: Path
    to_it: int
    from_it: int
    rest: bytes = b""
    last: int = 0
    events: list[dict] = field(default_factory=list)

    def look_at(self, path, width, height=900, media="screen"):
        """The page as it is laid out at that width."""
        [target] = self._ask("Target.createTarget", url="about:blank").values()
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable", session)
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._ask("Emulation.setDeviceMetricsOverride", session, **shape)
        self._ask("Emulation.setEmulatedMedia", session, media=media)
        self._ask("Page.navigate", session, url=path.as_uri())
        self._until(lambda event: event["method"] == "Page.loadEventFired")
        found = self._ask("Runtime.evaluate", session, expression=LOOK, awaitPromise=True, returnByValue=True)
        found = found["result"]["value"]
        pdf = b""
        if media == "print":
            pdf = base64.b64decode(self._ask("Page.printToPDF", session, preferCSSPageSize=True)["data"])
        faults = [*told(self.events), *faults_in(found, path, width)]
        self._ask("Target.closeTarget", targetId=target)
        return Seen(faults, found["images"], found["links"], found["front"], found["text"], pdf)

    def _ask(self, method, session=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to_it, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda event: event.get("id") == self.last)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _until(self, is_it):
        """Events that come before it, and it where it is one, are kept."""
        for event in self.events:
            if is_it(event):
                return event
        end = time.monotonic() + WAIT_S
        while True:
            message = self._next(end)
            if "method" in message:
                self.events.append(message)
            if is_it({"method": ""} | message):
                return message

    def _next(self, end):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_it], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self.from_it, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("the browser has ended" if ready else f"the browser says nothing for {WAIT_S} s")
            self.rest += data
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)


def told(events):
    """What the browser itself complains of, and what the page asks for outside of itself."""
    faults = []
    for event in events:
        of = event["params"]
        if event["method"] == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            faults.append(f"console {of['type']}: {' '.join(str(each.get('value', '')) for each in of['args'])}")
        elif event["method"] == "Runtime.exceptionThrown":
            faults.append(f"console error: {of['exceptionDetails']['text']}")
        elif event["method"] == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            faults.append(f"console {of['entry']['level']}: {of['entry']['text']}")
        elif event["method"] == "Network.requestWillBeSent" and urlsplit(of["request"]["url"]).scheme not in WITHIN:
            faults.append(f"outside request: {of['request']['url']}")
    return faults


def faults_in(found, path, width):
    faults = [f"broken image: {source[:60]}" for source in found["broken"]]
    faults += [f"dead link: {link}" for link in found["links"] if not leads_somewhere(link, found["ids"], path.parent)]
    if found["needed"] > width:
        faults.append(f"too wide: {found['needed']} pixels where {width} are")
    return faults


def leads_somewhere(link, ids, folder):
    """To a part of the page or a file of the folder; what lies outside it is not followed."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https", "mailto"):
        return True
    if not parts.path:
        return parts.fragment in ids
    target = (folder / unquote(parts.path)).resolve()
    return not parts.scheme and target.is_relative_to(folder.resolve()) and target.is_file()


@contextmanager
def browser():
    """However it is left, its processes are ended and its profile is deleted."""
    reads, to_it = os.pipe()
    from_it, writes = os.pipe()
    ours = [fcntl(descriptor, F_DUPFD_CLOEXEC, 10) for descriptor in (reads, writes)]  # out of the way of 3 and 4
    os.close(reads)
    os.close(writes)
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        command = [sys.executable, "-c", START, *map(str, ours), program(), *OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            command, pass_fds=ours, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for descriptor in ours:
            os.close(descriptor)
        try:
            yield Browser(process, Path(profile), to_it, from_it)
        finally:
            os.close(to_it)
            os.close(from_it)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _wait_until_gone(process.pid)


def _wait_until_gone(group):
    """Until no process of it is left that could write into the profile."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
