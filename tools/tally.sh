#!/bin/sh
# tally.sh NAME COMMAND...: runs every command (each one word, for sh -c), goes on after a failure, and ends
# with `NAME: N passed, N failed` ("" for no name). Fails when anything did.
# A command's own last "N passed, N failed" is added up, in whatever order it says them; one that gives no
# counts is one test; one that ends badly without saying that a test failed counts as one failure.
set -u
name=$1
shift
log=$(mktemp) || exit 1
trap 'rm -f "$log" "$log.rc"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0

for command; do
    echo "--- $command"
    # No part may hang for ever.
    {
        timeout --foreground -k 10 "${TALLY_TIMEOUT_S:-3600}" sh -c "exec $command"
        echo $? >"$log.rc"
    } 2>&1 | tee "$log"
    code=$(cat "$log.rc")
    # The last line with counts: "3 passed, 0 failed", "1 failed, 7 passed in 2.31s", "2 errors in 0.1s".
    counts=$(awk '
        function number(word,   m) { m = match($0, "[0-9]+ " word); return m ? substr($0, RSTART) + 0 : 0 }
        /[0-9]+ (passed|failed|error)/ {
            p = number("passed"); f = number("failed") + number("error"); seen = 1
        }
        END { if (seen) print p, f }' "$log")
    p=${counts% *} f=${counts#* }
    if [ -z "$counts" ]; then p=$((code == 0)) f=0; fi
    if [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
        case $code in
        124 | 137) echo "FAILED, out of time: $command" ;;
        *) echo "FAILED, exit code $code: $command" ;;
        esac
    fi
    passed=$((passed + p)) failed=$((failed + f))
done

echo "${name:+$name: }$passed passed, $failed failed"
[ "$failed" -eq 0 ]
