"""Endpoint, region and keys of S3, as AWS's tools find them: in environment variables, then in ~/.aws.

Keys that a program must provide (sso, roles, credential_process) come from boto3, if it is installed. obstore
reads the variables of Google and Azure itself.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from packer.errors import RemoteError

_METADATA = ("169.254.169.254", 80)  # EC2's server of keys
_METADATA_SECONDS = 1.0
_YES = ("1", "true", "yes")
_AMAZON = ("amazonaws.com", "amazonaws.com.cn")
_KEY_SERVERS = ("169.254.0.0/16", "fd00:ec2::254", *_AMAZON)
"""Hosts that give keys to machines, containers and web identities."""
NOWHERE = "127.0.0.1:1"
"""A proxy that does not exist: requests to other hosts than the endpoint's fail there."""
_ASKED = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")


def apply(environment: Mapping[str, str]) -> None:
    """Set these environment variables in this process, and delete others with the same prefixes."""
    begins = tuple({name.partition("_")[0] + "_" for name in (*environment, "AWS_", "GOOGLE_", "AZURE_")})
    for name in [name for name in os.environ if name.startswith(begins)]:
        del os.environ[name]
    os.environ.update(environment)


def aws_options(url: str, environment: Mapping[str, str]) -> tuple[dict[str, Any], Any]:
    """Return obstore's options for S3, and a provider of keys or None.

    Raises RemoteError if there are no keys.
    """
    profile = _profile(environment)
    config: dict[str, Any] = {}
    endpoint = _first(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") or profile.get(
        "endpoint_url"
    )
    if endpoint:
        config["endpoint"] = endpoint
    config["region"] = _first(environment, "AWS_REGION", "AWS_DEFAULT_REGION") or profile.get(
        "region", "us-east-1"
    )
    if _first(environment, "AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST").lower() in _YES:
        config["skip_signature"] = True
    elif _first(environment, "AWS_ACCESS_KEY_ID"):
        pass  # obstore reads them
    elif profile.get("aws_access_key_id"):
        config["access_key_id"] = profile["aws_access_key_id"]
        config["secret_access_key"] = profile.get("aws_secret_access_key", "")
        if profile.get("aws_session_token"):
            config["session_token"] = profile["aws_session_token"]
    elif any(name in profile for name in _ASKED):
        return config, _boto3_provider(url)
    elif not any(name.startswith(("AWS_WEB_IDENTITY_", "AWS_CONTAINER_")) for name in environment):
        if _first(environment, "AWS_PROFILE") and not profile:
            raise RemoteError(
                f"{url}: there is no profile {environment['AWS_PROFILE']!r} in ~/.aws. Check AWS_PROFILE."
            )
        _check_metadata(url)
    return config, None


def redirect_guard(config: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return client options that keep redirects on the endpoint's host; {} behind a proxy.

    Without these options the client sends the session token in its headers to any host that it is redirected
    to; no option of the client prevents this. Behind a proxy, the proxy receives all requests. config: result
    of aws_options, with keys if it found some. If neither config nor the environment has keys, the servers
    that give keys are allowed too.
    """
    if any(
        os.environ.get(f"{kind}_PROXY") or os.environ.get(f"{kind}_proxy") or environment.get(f"{kind}_PROXY")
        for kind in ("HTTP", "http", "HTTPS", "https", "ALL", "all", "AWS")
    ):
        return {}
    places = [config["endpoint"]] if "endpoint" in config else []
    hosts = [] if places else [*_AMAZON]
    if not ("access_key_id" in config or "skip_signature" in config or environment.get("AWS_ACCESS_KEY_ID")):
        names = ("AWS_ENDPOINT_URL_STS", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_METADATA_ENDPOINT")
        places += [environment[name] for name in names if environment.get(name)]
        hosts += _KEY_SERVERS
    hosts += [host for place in places if (host := urlsplit(place).hostname)]
    return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(hosts)}


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the active profile in ~/.aws/config and ~/.aws/credentials; {} without one."""
    name = _first(environment, "AWS_PROFILE", "AWS_DEFAULT_PROFILE") or "default"
    home = os.path.join(_first(environment, "HOME", "USERPROFILE") or os.path.expanduser("~"), ".aws")
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
            parser.read(environment.get(variable) or os.path.join(home, file))
        if parser.has_section(section):
            found.update(parser.items(section))
    return found


def _boto3_provider(url: str) -> Any:
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise RemoteError(
            f"{url}: the keys of the active profile come from a program, which boto3 runs. Run: pip install"
            " boto3"
        ) from None
    return Boto3CredentialProvider()


def _check_metadata(url: str) -> None:
    """Raise RemoteError if there is no machine role that provides keys; obstore would search for minutes."""
    try:
        socket.create_connection(_METADATA, _METADATA_SECONDS).close()
    except OSError:
        raise RemoteError(
            f"{url}: no keys were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE;"
            " for a public bucket AWS_SKIP_SIGNATURE=true."
        ) from None
