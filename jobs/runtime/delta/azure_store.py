"""How Spark's Java reads tables in Azure Blob Storage: by the interface of blobs, as delta-rs writes them.

delta-rs and obstore read the `AZURE_*` variables themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from jobs.runtime.tables_address import AZURE

OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
KEY = "AZURE_STORAGE_ACCOUNT_KEY"
RETRIES = 3
"""Of a request that failed; 30 by default, which is minutes."""


def azure_settings(tables: str, environment: Mapping[str, str], connect: int, request: int) -> dict[str, str]:
    """Settings of Hadoop's client for `tables` at `abfss://`; `connect` and `request` are seconds.

    A key is no setting: Hadoop looks it up in the environment of each process.
    """
    found = AZURE.fullmatch(tables)
    if found is None:
        raise ValueError(f"{tables} is no container of Azure's")
    settings = {
        "fs.azure.account.hns.enabled": "false",
        "fs.azure.fns.account.service.type": "BLOB",
        "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",
        "fs.azure.ssl.channel.mode": "Default_JSSE",
        "fs.azure.http.connection.timeout": str(connect * 1000),
        "fs.azure.http.read.timeout": str(request * 1000),
        "fs.azure.io.retry.max.retries": str(RETRIES),
    }
    if endpoint := environment.get("AZURE_STORAGE_ENDPOINT"):
        settings["fs.azure.abfs.endpoint"] = urlsplit(endpoint).netloc
        settings["fs.azure.always.use.https"] = str(endpoint.startswith("https:")).lower()
    if environment.get(KEY):
        settings[f"fs.azure.account.key.{found['account']}.dfs.core.windows.net"] = f"${{env.{KEY}}}"
        return settings
    identity = {
        "fs.azure.account.auth.type": "OAuth",
        "fs.azure.account.oauth.provider.type": f"{OAUTH}.WorkloadIdentityTokenProvider",
        "fs.azure.account.oauth2.msi.tenant": environment.get("AZURE_TENANT_ID"),
        "fs.azure.account.oauth2.client.id": environment.get("AZURE_CLIENT_ID"),
        "fs.azure.account.oauth2.token.file": environment.get("AZURE_FEDERATED_TOKEN_FILE"),
        "fs.azure.account.oauth2.msi.authority": environment.get("AZURE_AUTHORITY_HOST"),
    }
    return settings | {name: value for name, value in identity.items() if value}
