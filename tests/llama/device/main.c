/* SPDX-License-Identifier: MIT */
/*
 * Tests of the llama.cpp device through ggml's public interface.
 *
 *   device-test [options] HOST PLUGIN [POLICY...]
 *
 *   HOST            directory with libggml.so, libggml-base.so and libggml-cpu.so, under whatever names
 *   PLUGIN          libggml-quire.so
 *   POLICY          values of QUIRE_KV; without any the declared types are tested
 *   -t NAME         only sub-tests whose name contains this (several: any of them)
 *   -b DIR          CPU backend from this directory
 *   -l              load the host's libraries without RTLD_GLOBAL
 *   -v              print every case with its error
 *   -n              list the sub-tests
 *
 * cc -std=c11 -O2 tests/llama/device/[a-z]*.c -o device-test -ldl -lm
 *
 * Every sub-test is a process: host and device are loaded anew, and an abort ends one sub-test. Exit status 1 if any fails.
 */
#define _DEFAULT_SOURCE

#include "kit.h"
#include "tests.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECONDS = 900, MAX_NAMES = 16 };

unsigned char *shared_bytes;

typedef struct subtest {
    const char *name;
    void (*run)(void);
    bool may_abort;
} subtest;

static const subtest declared[] = {
    {"attend-f32", test_attend_f32, false},
    {"attend-f16", test_attend_f16, false},
    {"attend-bf16", test_attend_bf16, false},
    {"attend-q8_0", test_attend_q8_0, false},
    {"attend-q5_1", test_attend_q5_1, false},
    {"attend-q5_0", test_attend_q5_0, false},
    {"attend-q4_1", test_attend_q4_1, false},
    {"attend-q4_0", test_attend_q4_0, false},
    {"attend-iq4_nl", test_attend_iq4_nl, false},
    {"sched", test_sched, false},
    {"invariance", test_invariance, false},
    {"selected", test_selected, false},
    {"bytes", test_bytes, false},
    {"bytes-tiny", test_bytes_tiny, false},
    {"bytes-any", test_bytes_any, false},
    {"bytes-cleared", test_bytes_cleared, false},
    {"bytes-threads", test_bytes_threads, false},
    {"bytes-one-bad", test_bytes_one_bad, false},
    {"state", test_state, false},
    {"streams", test_streams, false},
    {"short-stream", test_short_stream, false},
    {"copy", test_copy, false},
    {"shift", test_shift, false},
    {"shift-rotated", test_shift_rotated, false},
    {"window", test_window, false},
    {"contexts", test_contexts, false},
    {"early", test_early, false},
    {"masked", test_masked, false},
    {"empty", test_empty, false},
    {"nan-rows", test_nan_rows, false},
    {"bad-cell", test_bad_cell, true},
    {"raw", test_raw, false},
    {"flip", test_flip, false},
    {"odd-ops", test_odd_ops, false},
    {"unattended", test_unattended, false},
    {"one-side", test_one_side, false},
    {"bare-rows", test_bare_rows, false},
    {"lost-shift", test_lost_shift, false},
    {"lost-mask", test_lost_mask, false},
    {"lost-ends", test_lost_ends, false},
};

static const subtest with_policy[] = {
    {"policy-attend", test_policy_attend, false},
    {"policy-invariance", test_invariance, false},
    {"policy-selected", test_selected, false},
    {"policy-rows", test_policy_rows, false},
    {"policy-shift", test_policy_shift, false},
    {"policy-nan", test_policy_nan, false},
    {"policy-window", test_window, false},
    {"policy-contexts", test_contexts, false},
    {"policy-raw", test_raw, false},
    {"policy-sched", test_sched, false},
    {"policy-flip", test_flip, false},
    {"policy-odd-ops", test_odd_ops, false},
    {"policy-unattended", test_unattended, false},
    {"policy-one-side", test_one_side, false},
    {"policy-apart", test_apart, false},
    {"policy-two-makers", test_two_makers, false},
    {"policy-together", test_together, false},
};

static struct options {
    const char *host, *plugin, *backends, *names[MAX_NAMES];
    int n_names;
    bool local;
} options;

static bool chosen(const char *name)
{
    for (int i = 0; i < options.n_names; i++) {
        if (strstr(name, options.names[i])) return true;
    }
    return options.n_names == 0;
}

/* The child's part. */
static void run_here(const subtest *t, const char *policy)
{
    unsetenv("GGML_BACKEND_PATH");
    unsetenv("QUIRE_LOG"); /* some tests read the log of the host */
    setenv("GGML_NO_BACKTRACE", "1", 1);
    if (policy)
        setenv("QUIRE_KV", policy, 1);
    else
        unsetenv("QUIRE_KV");
    kit.policy = policy;
    alarm(SECONDS);
    if (!kit_open(options.host, options.backends, options.plugin, options.local)) _exit(2);
    t->run();
    kit_close();
}

static bool run(const subtest *t, const char *policy)
{
    char what[64] = "";
    int status = 0;
    fflush(stdout);
    *kit.counts = (kit_counts){0};
    pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        run_here(t, policy);
        fflush(NULL);
        exit(0); /* not _exit: what the libraries do at the end is part of it */
    }
    if (waitpid(child, &status, 0) != child) return false;
    bool aborted = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && t->may_abort;
    bool ended = (WIFEXITED(status) && WEXITSTATUS(status) == 0) || aborted;
    bool ok = ended && kit.counts->failures == 0 && (kit.counts->checks > 0 || aborted);
    if (WIFSIGNALED(status))
        snprintf(what, sizeof what, ", signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!ended)
        snprintf(what, sizeof what, ", exit status %d", WEXITSTATUS(status));
    printf("%-20s %-6s %ld checks", t->name, ok ? "ok" : "FAILED", kit.counts->checks);
    if (kit.counts->failures) printf(", %ld failed", kit.counts->failures);
    printf("%s%s%s\n", what, policy ? "   QUIRE_KV=" : "", policy ? policy : "");
    return ok;
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Rows made under one policy are shown to another. */
static bool run_foreign(const char *policy)
{
    static const subtest give = {"policy-give", test_policy_give, false},
                         take = {"policy-foreign", test_policy_take, false};
    static const char other[] = "a5g32/a6g32", another[] = "a3g64/a2g64";
    if (!chosen(take.name)) return true;
    return run(&give, !policy || strcmp(policy, other) ? other : another) && run(&take, policy);
}

static bool run_known(const char *policy)
{
    static const subtest give = {"known-give", test_known_give, false},
                         take = {"policy-known", test_known_take, false};
    static const char other[] = "r5/r4", another[] = "a4g64/r3";
    if (!chosen(take.name)) return true;
    return run(&give, !policy || strcmp(policy, other) ? other : another) && run(&take, policy);
}

static bool run_told(void)
{
    static const subtest give = {"told-give", test_told_give, false},
                         take[] = {{"told-cpu", test_told_cpu, false},
                                   {"told-device", test_told_device, false},
                                   {"told-planned", test_told_planned, false},
                                   {"told-plain", test_told_plain, false}};
    if (!chosen("told")) return true;
    bool ok = run(&give, "r5/r4");
    for (size_t i = 0; i < COUNT(take); i++) ok &= run(&take[i], NULL);
    return ok;
}

static bool run_list(const subtest *list, size_t n, const char *policy)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        if (chosen(list[i].name)) ok &= run(&list[i], policy);
    }
    return ok;
}

static int usage(void)
{
    fputs("usage: device-test [-t NAME]... [-b DIR] [-l] [-v] [-n] HOST PLUGIN [POLICY...]\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "t:b:lvn")) != -1) {
        switch (option) {
        case 't':
            if (options.n_names < MAX_NAMES) options.names[options.n_names++] = optarg;
            break;
        case 'b': options.backends = optarg; break;
        case 'l': options.local = true; break;
        case 'v': kit.verbose = true; break;
        case 'n':
            for (size_t i = 0; i < COUNT(declared); i++) puts(declared[i].name);
            for (size_t i = 0; i < COUNT(with_policy); i++) puts(with_policy[i].name);
            puts("policy-foreign");
            puts("policy-known");
            puts("told");
            return 0;
        default: return usage();
        }
    }
    if (argc - optind < 2) return usage();
    options.host = argv[optind];
    options.plugin = argv[optind + 1];

    void *memory = mmap(NULL, 4096 + SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    kit.counts = memory;
    shared_bytes = (unsigned char *)memory + 4096;

    bool ok = true;
    if (argc - optind == 2) {
        ok &= run_list(declared, COUNT(declared), NULL);
        ok &= run_foreign(NULL);
        ok &= run_known(NULL);
        ok &= run_told();
    }
    for (int i = optind + 2; i < argc; i++) {
        ok &= run_list(with_policy, COUNT(with_policy), argv[i]);
        ok &= run_foreign(argv[i]);
        ok &= run_known(argv[i]);
    }
    return ok ? 0 : 1;
}
