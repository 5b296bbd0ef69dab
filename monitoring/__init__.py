"""What Weir tells about itself: metrics, alerts, Grafana."""
