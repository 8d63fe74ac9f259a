/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "serve/engine.h"

#include "serve/clock.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Between a process that ended and the next. One that lived for a while starts with the first again. */
enum { FIRST_PAUSE_MS = 500, LAST_PAUSE_MS = 30000, LONG_LIFE_MS = 60000 };
/* A process that ended so often before it was ready once will not be started again. */
enum { MOST_FALSE_STARTS = 3 };
enum { HEALTH_EVERY_MS = 100, STOP_GRACE_MS = 10000 };

struct engine {
    engine_options options;
    pthread_t keeper; /* it forks, because PDEATHSIG is sent when the thread that forked ends */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    engine_state state;
    uint32_t generation;
    pid_t pid; /* 0: none */
    bool is_stopping, was_ready;
    int status; /* of the last process, as from waitpid() */
};

static void tell(engine *e, engine_state state, const char *why)
{
    pthread_mutex_lock(&e->lock);
    bool is_new = e->state != state || state == ENGINE_STARTING;
    uint32_t generation = e->generation;
    e->state = state;
    if (state == ENGINE_READY) e->was_ready = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    if (is_new && e->options.changed) e->options.changed(e->options.ctx, state, generation, why);
}

/* Async-signal-safe: other threads may hold any lock. */
static void become(const engine *e, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGHUP, SIG_IGN); /* sent to all processes of a service it means: read your files again */
    setpgid(0, 0);           /* Ctrl-C at the terminal is for this program, which then stops the server */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* it ended in between */
    execv(e->options.argv[0], e->options.argv);
    _exit(127);
}

/* Waits for the process or the wish to stop; asks for its health until it is ready. */
static void watch(engine *e, pid_t pid)
{
    bool ready = false;
    long long asked_to_end = 0;
    for (;;) {
        int status;
        pid_t ended = waitpid(pid, &status, WNOHANG);
        pthread_mutex_lock(&e->lock);
        bool stopping = e->is_stopping;
        if (ended == pid) {
            e->status = status;
            e->pid = 0;
        }
        pthread_mutex_unlock(&e->lock);
        if (ended == pid) return;
        if (stopping && !asked_to_end) {
            kill(pid, SIGTERM);
            asked_to_end = (long long)clock_ms();
        }
        if (asked_to_end && (long long)clock_ms() - asked_to_end > STOP_GRACE_MS) kill(pid, SIGKILL);
        if (!ready && !stopping) {
            char *body;
            size_t n;
            const exchange_request health = {
                .method = "GET", .target = "/health", .client = -1, .timeout_ms = 2000};
            unsigned answer = upstream_ask(&e->options.to, &health, 65536, &body, &n);
            /* With --api-prefix, /health needs a key too. A server that loads its model says 503 before it looks at keys. */
            ready = answer == 200 || answer == 401;
            free(body);
            if (ready) tell(e, ENGINE_READY, "");
        }
        struct timespec until = clock_in_ms(HEALTH_EVERY_MS);
        pthread_mutex_lock(&e->lock);
        if (!e->is_stopping || asked_to_end) pthread_cond_timedwait(&e->changed, &e->lock, &until);
        pthread_mutex_unlock(&e->lock);
    }
}

static const char *describe(int status, char *text, size_t size)
{
    if (WIFSIGNALED(status))
        snprintf(text, size, "it was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, size, "it ended with status %d", WEXITSTATUS(status));
    return text;
}

/* false: the engine is to stop. */
static bool pause_for(engine *e, long long ms)
{
    struct timespec until = clock_in_ms(ms);
    pthread_mutex_lock(&e->lock);
    while (!e->is_stopping && pthread_cond_timedwait(&e->changed, &e->lock, &until) != ETIMEDOUT) {
    }
    bool go_on = !e->is_stopping;
    pthread_mutex_unlock(&e->lock);
    return go_on;
}

static bool start_one(engine *e)
{
    if (e->options.to.socket)
        unlink(e->options.to.socket); /* of one that was killed; the next could not listen there */
    pid_t parent = getpid(), pid = fork();
    if (!pid) become(e, parent);
    pthread_mutex_lock(&e->lock);
    e->pid = pid > 0 ? pid : 0;
    e->generation += pid > 0;
    pthread_mutex_unlock(&e->lock);
    return pid > 0;
}

static void *keep(void *ctx)
{
    engine *e = (engine *)ctx;
    long long pause = FIRST_PAUSE_MS;
    int false_starts = 0;
    char why[128] = "";
    for (bool go_on = true; go_on;) {
        long long begin = (long long)clock_ms();
        if (start_one(e)) {
            tell(e, ENGINE_STARTING, "");
            watch(e, e->pid);
            describe(e->status, why, sizeof why);
        } else {
            snprintf(why, sizeof why, "no process can be made: %s", strerror(errno));
            e->status = 1 << 8; /* as waitpid() says that a process ended with 1 */
        }
        if ((long long)clock_ms() - begin > LONG_LIFE_MS) pause = FIRST_PAUSE_MS;
        pthread_mutex_lock(&e->lock);
        go_on = !e->is_stopping && (e->was_ready || ++false_starts < MOST_FALSE_STARTS);
        pthread_mutex_unlock(&e->lock);
        if (!go_on) break;
        tell(e, ENGINE_DOWN, why);
        go_on = pause_for(e, pause);
        pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS;
    }
    tell(e, ENGINE_GONE, why);
    return NULL;
}

engine *engine_start(const engine_options *options)
{
    engine *e = (engine *)calloc(1, sizeof *e);
    if (!e) return NULL;
    e->options = *options;
    pthread_mutex_init(&e->lock, NULL);
    clock_cond_init(&e->changed);
    if (!pthread_create(&e->keeper, NULL, keep, e)) return e;
    free(e);
    return NULL;
}

engine_state engine_wait_ready(engine *e, uint32_t timeout_ms)
{
    struct timespec until = clock_in_ms(timeout_ms);
    pthread_mutex_lock(&e->lock);
    while (e->state != ENGINE_READY && e->state != ENGINE_GONE &&
           pthread_cond_timedwait(&e->changed, &e->lock, &until) != ETIMEDOUT) {
    }
    engine_state state = e->state;
    pthread_mutex_unlock(&e->lock);
    return state == ENGINE_DOWN ? ENGINE_STARTING : state;
}

engine_state engine_state_now(engine *e, uint32_t *generation)
{
    pthread_mutex_lock(&e->lock);
    engine_state state = e->state;
    if (generation) *generation = e->generation;
    pthread_mutex_unlock(&e->lock);
    return state;
}

int engine_stop(engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->is_stopping = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->keeper, NULL);
    int status = e->status;
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
