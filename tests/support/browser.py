"""A real browser for pages."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Continuous integration must not pass by leaving this out; on macOS no package manager has both.
REQUIRED = os.environ.get("CI") == "true" and sys.platform == "linux"
NEEDS_BROWSER = pytest.mark.skipif(
    (CHROMIUM is None or DRIVER is None) and not REQUIRED,
    reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)",
)

CONTRAST = """
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
const context = canvas.getContext('2d', {willReadFrequently: true});
const pixels = colors => {  // painted over each other, so that transparency counts
  context.clearRect(0, 0, 1, 1);
  for (const color of colors) { context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
  return [...context.getImageData(0, 0, 1, 1).data];
};
const light = p => 0.2126 * channel(p[0]) + 0.7152 * channel(p[1]) + 0.0722 * channel(p[2]);
const behind = element => {
  const colors = [];
  for (let e = element; e; e = e.parentElement)
    colors.unshift(getComputedStyle(e).backgroundColor);
  return colors;
};
const contrast = (element, color) => {
  const ground = behind(element), a = light(pixels(ground)), b = light(pixels([...ground, color]));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const found = {};
const least = (name, value) => { found[name] = Math.min(found[name] ?? 99, value); };
for (const element of document.querySelectorAll('main *, header *')) {
  const style = getComputedStyle(element);
  const own = [...element.childNodes].some(n => n.nodeType == 3 && n.data.trim());
  const drawn = element instanceof SVGElement;
  const name = (drawn ? 'svg ' : '') + element.tagName;
  if (own && !['title', 'desc'].includes(element.tagName) && element.getClientRects().length)
    least(name, contrast(element, drawn ? style.fill : style.color));
  if (element.matches('.line')) least('line', contrast(element, style.stroke));
  if (element.matches('.dot')) least('dot', contrast(element, style.fill));
}
return found;
"""
"""Least contrast of text and lines, by element."""


def open_browser(profile: Path) -> Any:
    """Start a browser with a folder for its profile."""
    assert CHROMIUM is not None, "CI has no chromium"
    assert DRIVER is not None, "CI has no chromedriver"
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
