"""What the chart's generated files are made from: `python -m charts.render`."""
