"""A program that speaks the control protocol as a test wants it, for what the real one never does.

The behaviour is in FAKE_CLAUDE; each prompt is answered with a text unless it says otherwise.
"""

import json
import os
import sys

BEHAVIOUR = os.environ.get("FAKE_CLAUDE", "")


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def result(**fields: object) -> None:
    say(type="result", is_error=False, terminal_reason="completed", **fields)


def answer(asked: dict[str, object], **response: object) -> None:
    done = {"subtype": "success", "request_id": asked["request_id"], "response": response}
    say(type="control_response", response=done)


def turn(prompt: str, uuid: str) -> None:
    say(type="system", subtype="init", session_id="s", model="m", claude_code_version="9")
    if "garbage" in prompt:
        sys.stdout.write('not json\n[1, 2]\n"text"\n{"type": \n\n{"type": 7}\n')
        sys.stdout.buffer.write(b'\xff\xfe{"type":"result"\n')
        sys.stdout.flush()
    if "silent" in prompt:
        return  # the turn never ends by itself
    if "crash" in prompt:
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)
    if "foreign" in prompt:
        result(result="of another turn", user_message_uuids=["another"])
    if "hook" in prompt:
        say(type="control_request", request_id="h", request={"subtype": "hook_callback"})
        return
    result(result=prompt.upper(), user_message_uuids=[uuid])


def main() -> int:
    if "--permission-prompt-tool" in sys.argv and BEHAVIOUR == "old":
        print("error: unknown option '--permission-prompt-tool'", file=sys.stderr)
        return 1
    if "--permission-prompt-tool" not in sys.argv:  # one prompt
        turn(sys.stdin.read(), "")
        return 0
    waiting = ""
    for line in sys.stdin:
        given = json.loads(line)
        if given["type"] == "user":
            waiting = given["uuid"]
            turn(given["message"]["content"], waiting)
        elif given["type"] == "control_response":
            result(result=json.dumps(given["response"]), user_message_uuids=[waiting])
        elif given["request"]["subtype"] == "initialize":
            if BEHAVIOUR == "mute":
                continue
            if BEHAVIOUR == "dies":
                print("no good today", file=sys.stderr)
                return 1
            answer(given, commands=[])
        elif given["request"]["subtype"] == "interrupt":
            answer(given, still_queued=[waiting])
        elif given["request"]["subtype"] == "cancel_async_message":
            answer(given, cancelled=given["request"]["message_uuid"] == waiting)
    if BEHAVIOUR == "stays":
        import signal

        signal.pause()
    return 0


sys.exit(main())
