"""The configuration of an Envoy that answers itself, and writes the access log of the guide.

Envoy AI Gateway's own process counts tokens into dynamic metadata; here a filter of Envoy puts the same names there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laptop.ports import LOOPBACK

TOKENS = {"llm_input_token": 1200, "llm_output_token": 300, "model_name_override": "gpt-4o"}
TOKENS |= {"llm_cached_input_token": 1000}
_TYPE = "type.googleapis.com/envoy.extensions"


def config(port: int, log: Path, json_format: dict[str, str]) -> dict[str, Any]:
    """Envoy's bootstrap: paths below /v1 call a model, any other does not."""
    metadata = {"metadata_namespace": "io.envoy.ai_gateway", "value": TOKENS, "allow_overwrite": True}
    filters = [
        {
            "name": "tokens",
            "typed_config": {
                "@type": f"{_TYPE}.filters.http.set_metadata.v3.Config",
                "metadata": [metadata],
            },
        },
        {"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}},
    ]
    other = {"tokens": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}}
    answer = {"direct_response": {"status": 200, "body": {"inline_string": "A low dam."}}}
    routes = [
        {"match": {"prefix": "/v1"}, **answer},
        {"match": {"prefix": "/"}, **answer, "typed_per_filter_config": other},
    ]
    written = {
        "name": "log",
        "typed_config": {
            "@type": f"{_TYPE}.access_loggers.file.v3.FileAccessLog",
            "path": str(log),
            "log_format": {"json_format": json_format},
        },
    }
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "models",
        "generate_request_id": True,
        "access_log": [written],
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    address = {"socket_address": {"address": LOOPBACK, "port_value": port}}
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"static_resources": {"listeners": [{"name": "models", "address": address, "filter_chains": [chain]}]}}
