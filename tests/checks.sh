# shellcheck shell=bash
# Runs the checks of docker/test and counts them. Sourced; $scratch is a directory.
# shellcheck disable=SC2154 # scratch and no_skips are docker/test's

passed=0 failed=0 skipped=0 failures='' check_group='' started_parts=() part_groups=''

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

# Starts a part whose checks run concurrently with other parts. collect_parts prints its lines and adds its sums.
start_part() { # PART
    local group
    in_group "$scratch/$1.out" run_started_part "$1"
    started_parts+=("$1") part_groups+=" $group"
}

run_started_part() { # PART
    mkdir "$scratch/$1"
    scratch+=/$1 passed=0 failed=0 skipped=0 failures=''
    trap - EXIT
    trap 'kill -- "-$check_group" 2>/dev/null; exit 130' TERM
    "$1"
    printf 'passed=$((passed + %d)) failed=$((failed + %d)) skipped=$((skipped + %d)) failures+=%q\n' \
        "$passed" "$failed" "$skipped" "$failures" >"$scratch.sums"
}

collect_parts() {
    local part group
    for group in $part_groups; do wait "$group" || true; done
    for part in "${started_parts[@]}"; do
        cat "$scratch/$part.out"
        # shellcheck disable=SC1090 # written above
        . "$scratch/$part.sums" || { failed=$((failed + 1)) && printf 'FAILED  %s\n' "$part"; }
    done
    started_parts=() part_groups=''
}

# Starts a command in its own process group, so that a signal to this script ends the command and its children. Sets group.
in_group() { # LOG COMMAND...
    local log=$1
    shift
    set -m
    without_engine_lock "$@" >"$log" 2>&1 </dev/null &
    set +m
    group=$!
}

# Processes that outlive a killed run must not block the tests' engine for the next run.
without_engine_lock() { # COMMAND...
    [ -z "${own_engine_lock:-}" ] || exec {own_engine_lock}>&-
    "$@"
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
        failures+=$(printf 'FAILED  %s' "$1" && failed_tests "$4")$'\n'
        printf 'FAILED  %s (%d passed, %d failed, %d s)\n' "$1" "$good" "$bad" $((SECONDS - $2))
        { grep -v '^error: test run failed' "$4" | grep -E -A 400 '^error' || tail -n 400 "$4"; } | head -n 400 | sed 's/^/        /'
    fi
}

check_if() { # CONDITION REASON NAME COMMAND...: skipped, with the reason, where the condition fails; a failure with --no-skips
    if $1; then
        check "${@:3}"
    elif [ "$no_skips" = 1 ]; then
        failed=$((failed + 1)) failures+="FAILED  $3: $2"$'\n'
        printf 'FAILED  %s: %s\n' "$3" "$2"
    else
        skipped=$((skipped + 1))
        printf 'skipped %s: %s\n' "$3" "$2"
    fi
}

total() { # passed | failed, LOG: the last line of nextest is "Summary [ 1.2s] 9 tests run: 7 passed (1 slow), 1 failed, 1 timed out, 3 skipped".
    sed -nE 's/^ *Summary \[.*\] *([0-9]+)(\/[0-9]+)? tests? run: ([0-9]+) passed.*/\1 \3/p' "$2" |
        awk -v kind="$1" '{ n += kind == "passed" ? $2 : $1 - $2 } END { print n + 0 }'
}

failed_tests() { # LOG
    sed -nE 's/^ *(FAIL|TIMEOUT|SIG[A-Z]+|LEAK-FAIL) \[[^]]*\] *(\([^)]*\) *)?/\n        /p' "$1" | sort -u
}

print_result() {
    printf '%s%d passed, %d failed' "$failures" "$passed" "$failed"
    if [ "$skipped" = 0 ]; then echo; else echo ", $skipped skipped"; fi
    [ "$failed" = 0 ]
}

# Runs in parallel with the tests of the code.
start_building() {
    local group
    build_begin=$SECONDS
    in_group "$scratch/build" tests/image/build "${yes[@]}" plain demo full
    build_pid=$group
}

build() {
    local status=0
    [ "$built" = 0 ] || return 0
    [ -n "$build_pid" ] || start_building
    wait "$build_pid" || status=$?
    build_pid='' built=1
    count "images: plain, demo, full" "$build_begin" "$status" "$scratch/build"
}
