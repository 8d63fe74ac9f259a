# SPDX-License-Identifier: MIT
"""Pictures as SVG: Picture, made of elements, and Plot, points and lines on one pair of axes.

All Python that draws uses this file: eval/report.py, eval/end_to_end.py, scripts/draw, examples/python. `quire bench --plot` does not
need Python, so it has tools/bench/plot.c.
"""
import itertools
import math
from xml.sax.saxutils import escape, quoteattr

COLOURS = ["#0b6e99", "#d1495b", "#e6a117", "#3c8d53", "#7a5195", "#555555", "#b07aa1", "#76b7b2"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 72, 190, 44, 52


def element(name, text=None, **attributes):
    """Attributes appear in the order given; font_size stands for font-size."""
    begin = f"<{name}" + "".join(f" {key.replace('_', '-')}={quoteattr(str(value))}" for key, value in attributes.items())
    return begin + "/>" if text is None else f"{begin}>{escape(text)}</{name}>"


class Picture:
    """Elements on paper of a size in pixels; root: more attributes of the picture itself."""

    def __init__(self, size, paper, title=None, **root):
        self.lines = []
        self.root = dict(viewBox=f"0 0 {size[0]} {size[1]}", width=size[0], **root)
        if title:
            self.add(element("title", title))
        self.add(element("rect", width=size[0], height=size[1], fill=paper))

    def add(self, *elements):
        self.lines.append("".join(elements))

    def text(self):
        begin = element("svg", "", xmlns="http://www.w3.org/2000/svg", **self.root).replace("</svg>", "")
        return "\n".join([begin, *self.lines, "</svg>\n"])

    def save(self, path):
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.text())


class Plot:
    """log_y: powers of ten on the vertical axis. The names of the series are shown if there are several."""

    def __init__(self, title, x_title, y_title, log_y=False):
        self.title, self.x_title, self.y_title, self.log_y = title, x_title, y_title, log_y
        self.series = []

    def add(self, name, points, line=False, labels=None):
        """points: list of (x, y); labels: text beside each, or None."""
        points = [(x, y) for x, y in points if not self.log_y or y > 0]
        if points:
            self.series.append((name, points, line, labels or [None] * len(points)))

    def _scale(self):
        xs = [x for _, points, _, _ in self.series for x, _ in points]
        ys = [self._y(y) for _, points, _, _ in self.series for _, y in points]
        pad = lambda a, b: (a - 0.04 * ((b - a) or 1), b + 0.06 * ((b - a) or 1))
        return pad(min(xs), max(xs)), pad(min(ys), max(ys))

    def _y(self, y):
        return math.log10(y) if self.log_y else y

    def save(self, path):
        (x0, x1), (y0, y1) = self._scale()
        at_x = lambda x: LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        at_y = lambda y: HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        out = Picture((WIDTH, HEIGHT), "#fff", height=HEIGHT, font_family="sans-serif", font_size=12, fill="#222")
        out.add(element("text", self.title, x=LEFT, y=24, font_size=15, font_weight="bold"))
        for value, text in x_ticks(x0, x1):
            x = f"{at_x(value):.1f}"
            out.add(element("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, stroke="#e4e4e4"))
            out.add(element("text", text, x=x, y=HEIGHT - BOTTOM + 18, text_anchor="middle"))
        for value, text in log_ticks(y0, y1) if self.log_y else x_ticks(y0, y1):
            y = f"{at_y(value):.1f}"
            out.add(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, stroke="#e4e4e4"))
            out.add(element("text", text, x=LEFT - 8, y=f"{at_y(value) + 4:.1f}", text_anchor="end"))
        middle = (TOP + HEIGHT - BOTTOM) / 2
        out.add(element("text", self.x_title, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 12, text_anchor="middle"))
        out.add(element("text", self.y_title, x=18, y=middle, text_anchor="middle", transform=f"rotate(-90 18 {middle})"))
        placed = [(x - 5, y - 5, x + 5, y + 5) for _, points, _, _ in self.series
                  for x, y in ((at_x(a), at_y(self._y(b))) for a, b in points)]
        for i, (name, points, line, labels) in enumerate(self.series):
            colour = COLOURS[i % len(COLOURS)]
            spots = [(at_x(x), at_y(self._y(y))) for x, y in points]
            if line:
                out.add(element("polyline", fill="none", stroke=colour, stroke_width=1.8,
                                points=" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)))
            for (x, y), label in zip(spots, labels):
                out.add(element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3 if line else 4.5, fill=colour))
                if label:
                    out.add(place(label, x, y, colour, placed))
            if len(self.series) > 1:
                y = TOP + 12 + 20 * i
                out.add(element("circle", cx=WIDTH - RIGHT + 18, cy=y - 4, r=5, fill=colour),
                        element("text", name, x=WIDTH - RIGHT + 30, y=y))
        out.save(path)


def place(label, x, y, colour, placed):
    """A label beside its point, moved until it covers no other and no point; with a line to the point if that is far."""
    width = 6.2 * len(label)
    for dy, right in itertools.product((4, -6, 14, -16, 24, -26, 34, -36, 44, -46, 54, -56), (True, False)):
        left = x + (7 + abs(dy - 4) / 4) if right else x - 7 - abs(dy - 4) / 4 - width
        box = (left, y + dy - 10, left + width, y + dy + 2)
        if left > LEFT + 2 and all(box[2] < b[0] or box[0] > b[2] or box[3] < b[1] or box[1] > b[3] for b in placed):
            break
    placed.append(box)
    text = element("text", label, x=f"{left:.1f}", y=f"{y + dy:.1f}", font_size=10.5, fill=colour)
    if abs(dy - 4) <= 12:
        return text
    end = left - 2 if right else left + width + 2
    return element("line", x1=f"{x:.1f}", y1=f"{y:.1f}", x2=f"{end:.1f}", y2=f"{y + dy - 4:.1f}", stroke=colour, stroke_width=0.6) + text


def x_ticks(low, high):
    step = 10 ** math.floor(math.log10((high - low) / 4))
    for factor in (1, 2, 2.5, 5, 10):
        if (high - low) / (step * factor) <= 9:
            step *= factor
            break
    n = math.ceil(low / step)
    while n * step <= high:
        yield n * step, f"{n * step:g}"
        n += 1


def log_ticks(low, high):
    for e in range(math.floor(low), math.ceil(high) + 1):
        for m in (1, 2, 5):
            value = e + math.log10(m)
            if low <= value <= high:
                yield value, f"{m * 10.0 ** e:g}"
