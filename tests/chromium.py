"""A headless Chromium that reaches this machine alone, and what a test does with a page in it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root, as in a container, cannot do without
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-proxy-server",
    "--hide-scrollbars",
    "--window-size=1280,800",
    # No other name or address is ever found.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE = 15.0


def missing() -> list[str]:
    """Programs that are needed and not found."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


@contextmanager
def started() -> Iterator[Any]:
    """A driver of Chromium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
    )
    try:
        size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield driver
    finally:
        driver.quit()


class Page:
    """A page that was opened, and what is clicked and seen there."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address = driver, address
        for kind in ("performance", "browser"):
            driver.get_log(kind)  # what an earlier page left
        driver.get(address)
        assert self.wait("#view label", 4)

    def all(self, selector: str) -> list[Any]:
        found = self.driver.find_elements("css selector", selector)
        return [each for each in found if each.is_displayed()]

    def wait(self, selector: str, count: int | set[int] | None, seconds: float = PATIENCE) -> bool:
        """Whether there come to be so many elements, or any where that is ``None``."""

        def there() -> bool:
            found = len(self.all(selector))
            return found in count if isinstance(count, set) else found == (count or max(found, 1))

        return self._until(there, seconds)

    def click(self, selector: str) -> None:
        assert self.wait(selector, None), selector
        self.all(selector)[0].click()

    def choose(self, name: str, option: str) -> None:
        """Click an option of a menu."""
        assert self.wait(f"#{name} label", None), name
        next(label for label in self.all(f"#{name} label") if option in label.text).click()
        if name == "view":
            assert self._until(lambda: option.lower() in self.text("#heading").lower()), option

    def press(self, selector: str, key: str, times: int) -> None:
        from selenium.webdriver.common.keys import Keys

        self.all(selector)[0].send_keys(getattr(Keys, f"ARROW_{key.upper()}") * times)

    def text(self, selector: str) -> str:
        return " ".join(each.text for each in self.all(selector))

    def value(self, selector: str) -> str:
        return self.driver.find_element("css selector", selector).get_property("value")

    def sources(self, selector: str) -> list[str]:
        """Of images."""
        source = "image => image.getAttribute('src') || ''"
        found = f"return [...document.querySelectorAll(arguments[0])].map({source})"
        return self.driver.execute_script(found, selector)

    def drawn(self, selector: str) -> bool:
        """Whether all these images have been decoded, and have a size."""
        whole = "image => image.complete && image.naturalWidth > 0"
        found = f"return [...document.querySelectorAll(arguments[0])].every({whole})"
        return self.driver.execute_script(found, selector)

    def changes(self, selector: str, before: list[str], seconds: float = PATIENCE) -> None:
        """Wait until images are others than they were, and are drawn."""

        def other() -> bool:
            return self.sources(selector) not in (before, []) and self.drawn(selector)

        assert self._until(other, seconds), f"{selector} stayed as it was"

    def script(self, code: str) -> Any:
        return self.driver.execute_async_script(code)

    def stays_quiet(self) -> None:
        """Refuse what does not fit.

        :raises AssertionError: if the page asked for anything of another place, or
            complained.
        """
        asked = []
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                asked.append(urlsplit(event["params"]["request"]["url"]))
            elif event["method"] == "Network.webSocketCreated":
                asked.append(urlsplit(event["params"]["url"]))
        here = urlsplit(self.address).netloc
        assert any(url.netloc == here for url in asked), "requests are seen"
        local = ("data", "blob", "chrome", "about")
        elsewhere = {url for url in asked if url.scheme not in local and url.netloc != here}
        assert not elsewhere, f"asked of other places: {elsewhere}"
        entries = self.driver.get_log("browser")
        complaints = [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
        assert not complaints, complaints

    @staticmethod
    def _until(there: Any, seconds: float = PATIENCE) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if there():
                    return True
            except Exception as error:  # an element that was drawn anew meanwhile
                if type(error).__name__ != "StaleElementReferenceException":
                    raise
            time.sleep(0.03)
        return False
