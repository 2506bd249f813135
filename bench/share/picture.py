"""Draws shares over time as SVG: a line for each container, and behind it a band for its due share.

It is written by hand, so that no package is needed to look at a result. Each scenario has a small chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from share.measure import Result
from share.scenarios import Scenario

#: Colours that people with any common colour blindness can tell apart (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
GOOD, BAD, INK, FAINT = "#1a7f37", "#b42318", "#24292f", "#d0d7de"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 300, 190, 30, 34, 34
BAND = 2.0  # points on either side of the due share
MEAN_BOUND, WORST_BOUND = 1.0, 5.0  # points


def holds(result: Result) -> bool:
    """Whether the errors are within the project's promise."""
    return all(one.mean_error <= MEAN_BOUND and one.worst <= WORST_BOUND for one in result.outcomes)


def overview(title: str, judged: Sequence[tuple[Scenario, Result]], columns: int = 4) -> str:
    """All scenarios as small charts, in the order given."""
    columns = min(columns, max(1, len(judged)))
    rows = -(-len(judged) // columns)
    held = sum(holds(result) for _, result in judged)
    width, height = columns * WIDTH + 20, rows * HEIGHT + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" fill="{INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="14" y="24" font-size="16" font-weight="600">{escape(title)}</text>',
        f'<text x="14" y="43" font-size="11" fill="#57606a">{held} of {len(judged)} held. '
        "Lines: share of the card by completed work. Bands: the due share, "
        f"plus or minus {BAND:.0f} points.</text>",
    ]
    for number, (scenario, result) in enumerate(judged):
        x, y = 10 + number % columns * WIDTH, 54 + number // columns * HEIGHT
        parts.append(f'<g transform="translate({x} {y})">{_chart(scenario, result)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _chart(scenario: Scenario, result: Result) -> str:
    seconds = max((time for one in result.outcomes for time, _, _ in one.picture), default=1.0)
    wide, high = WIDTH - LEFT - 12, HEIGHT - TOP - BOTTOM
    top = max(100.0, *(got for one in result.outcomes for _, got, _ in one.picture))

    def at(time: float, share: float) -> str:
        return f"{LEFT + wide * time / seconds:.1f},{TOP + high * (1 - share / top):.1f}"

    colour = GOOD if holds(result) else BAD
    mark = "held" if holds(result) else "not held"
    parts = [
        f'<circle cx="8" cy="11" r="4" fill="{colour}"/>',
        f'<text x="18" y="15" font-size="12" font-weight="600">{escape(scenario.name)}</text>',
        f'<text x="18" y="28" font-size="9" fill="{colour}">{mark}: {escape(_said(result))}</text>',
    ]
    for share in (0, 25, 50, 75, 100):
        y = TOP + high * (1 - share / top)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{wide}" stroke="{FAINT}" stroke-width="0.6"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 3:.1f}" font-size="8" text-anchor="end">{share}</text>')
    for number, one in enumerate(result.outcomes):
        shade = COLOURS[number % len(COLOURS)]
        edge = [(time, max(0.0, due - BAND), due + BAND) for time, _, due in one.picture]
        outline = [at(time, high_) for time, _, high_ in edge] + [
            at(time, low) for time, low, _ in edge[::-1]
        ]
        parts.append(f'<polygon points="{" ".join(outline)}" fill="{shade}" opacity="0.22"/>')
        line = " ".join(at(time, got) for time, got, _ in one.picture)
        # Each line is thinner than the one before, so that none is hidden.
        thick = 1.3 + 0.9 * (len(result.outcomes) - 1 - number)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{shade}" stroke-width="{thick:.1f}"/>')
    parts.append(_legend(scenario, result))
    end = f'x="{LEFT + wide}" y="{TOP + high + 10}" font-size="8" text-anchor="end"'
    parts.append(f"<text {end}>{seconds:.0f} s</text>")
    return "".join(parts)


def _said(result: Result) -> str:
    mean = max(one.mean_error for one in result.outcomes)
    worst = max(one.worst for one in result.outcomes)
    return f"mean error {mean:.1f}, worst {worst:.1f} points; idle {result.idle:.1f} %"


def _legend(scenario: Scenario, result: Result) -> str:
    parts = []
    each = (WIDTH - LEFT) / max(2, len(result.outcomes))
    for number, (container, one) in enumerate(zip(scenario.containers, result.outcomes, strict=True)):
        x, shade = LEFT + each * number, COLOURS[number % len(COLOURS)]
        text = f"{one.got:.1f} of {one.expected:.0f} %"
        if len(result.outcomes) < 3:
            text += f" {container.load.name}"
        parts.append(f'<path d="M{x:.1f} {HEIGHT - 15}h8" stroke="{shade}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 11:.1f}" y="{HEIGHT - 12}" font-size="8.5">{escape(text)}</text>')
    return "".join(parts)
