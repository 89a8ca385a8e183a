"""Drives `curl`: status, headers, and every byte of the body."""

import json
import os
import subprocess
from typing import Any

import driver
from driver import Call

KEY_HEADERS = {"/messages": "x-api-key:"}


def whole(call: Call) -> Any:
    """`curl --no-buffer`, killed in the middle of a stream where the call says so."""
    command = [
        *("curl", "--silent", "--show-error", "--no-buffer", "--include"),
        *("--max-time", str(call.timeout)),
        *("--header", "Content-Type: application/json"),
        *("--header", f"{KEY_HEADERS.get(call.endpoint, 'Authorization: Bearer')} {os.environ['OPENAI_API_KEY']}"),
        *("--data-binary", "@-", os.environ["OPENAI_BASE_URL"] + call.endpoint),
    ]
    body = json.dumps({**call.request, **call.extra})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as curl:
        assert curl.stdin is not None and curl.stdout is not None
        curl.stdin.write(body.encode())
        curl.stdin.close()
        if call.turns_away:
            while curl.stdout.readline().count(b"data: ") == 0:
                continue
            curl.kill()
            return {"gone": True}
        text = curl.stdout.read().decode()
    if curl.returncode:
        return {"error": {"class": "curl", "code": curl.returncode}}
    return _read(text)


def _read(text: str) -> dict[str, Any]:
    head, _, body = text.partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    shown = {"status": int(status.split()[1]), "headers": sorted(headers), "type": headers["content-type"]}
    shown["request_id"] = headers.get("request-id") or headers["x-request-id"]
    if headers["content-type"].startswith("application/json"):
        return {**shown, "body": json.loads(body)}
    blocks = [
        dict(line.split(": ", 1) for line in block.split("\n")) for block in body.removesuffix("\n\n").split("\n\n")
    ]
    return {
        **shown,
        "lines": [list(block) for block in blocks],
        "events": [json.loads(block["data"]) for block in blocks if block["data"] != "[DONE]"],
        "ends": blocks[-1]["data"] == "[DONE]",
    }


if __name__ == "__main__":
    driver.run({"curl": whole})
