"""Chart encodings that several charts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt


def by_mark(field: str, marks: Mapping[str, str], colors: Sequence[str], *, has_legend: bool = True) -> alt.Color:
    """A colour for each of `marks`, whose signs say the same to who sees no colours. `field` holds a mark."""
    legend = alt.Legend(orient="top", title=None) if has_legend else None
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(marks.values()), range=list(colors)), legend=legend)


def time_axis(field: str) -> alt.X:
    """Instants of hours and days, in UTC."""
    return alt.X(f"{field}:T", title="Time (UTC)", scale=alt.Scale(type="utc"), axis=alt.Axis(format="%d %b %H:%M"))
