# shellcheck shell=bash
# Runs the checks of docker/test and counts them. Sourced; $scratch is a directory.
# shellcheck disable=SC2154 # scratch is docker/test's

passed=0 failed=0 skipped=0 failures='' check_group=''

# One command is one test, unless it prints the sums of test programs.
check() { # NAME COMMAND...
    local name=$1 begin=$SECONDS status=0 group
    shift
    in_group "$scratch/log" "$@"
    check_group=$group
    wait "$group" || status=$?
    check_group=''
    count "$name" "$begin" "$status" "$scratch/log"
}

# Starts a command in a process group of its own, so that a signal to this script ends it with its children. Sets group.
in_group() { # LOG COMMAND...
    local log=$1
    shift
    set -m
    "$@" >"$log" 2>&1 </dev/null &
    set +m
    group=$!
}

count() { # NAME BEGIN STATUS LOG
    local good bad
    good=$(total passed "$4") bad=$(total failed "$4")
    [ "$((good + bad))" != 0 ] || [ "$3" != 0 ] || good=1
    [ "$3" = 0 ] || [ "$bad" != 0 ] || bad=1
    passed=$((passed + good)) failed=$((failed + bad))
    if [ "$3" = 0 ]; then
        printf 'ok      %s (%d passed, %d s)\n' "$1" "$good" $((SECONDS - $2))
    else
        failures+=$(printf 'FAILED  %s' "$1" && sed -n 's/^test \(.*\) \.\.\. FAILED$/\n        \1/p' "$4")$'\n'
        printf 'FAILED  %s (%d passed, %d failed, %d s)\n' "$1" "$good" "$bad" $((SECONDS - $2))
        { grep -E -A 400 '^(failures:|error)' "$4" || tail -n 80 "$4"; } | head -n 400 | sed 's/^/        /'
    fi
}

total() { # passed | failed, LOG
    sed -nE "s/^test result: .* ([0-9]+) $1.*/\\1/p" "$2" | awk '{ n += $1 } END { print n + 0 }'
}

print_result() {
    printf '%s%d passed, %d failed' "$failures" "$passed" "$failed"
    if [ "$skipped" = 0 ]; then echo; else echo ", $skipped skipped"; fi
    [ "$failed" = 0 ]
}
