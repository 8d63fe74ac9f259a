/* SPDX-License-Identifier: MIT */
/* How long quire serve waits for clients, and which connection goes when there are too many or when bodies take all memory. The clock is the
 * test's. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/clock.h"
#include "serve/deadlines.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------ instead of clock.c */

static _Atomic long long now_ms;
static _Atomic unsigned n_looks; /* of the thread at all connections; it asks for the next time before each */

double clock_ms(void)
{
    return (double)now_ms;
}

void clock_cond_init(pthread_cond_t *cond)
{
    pthread_cond_init(cond, NULL);
}

struct timespec clock_in_ms(long long ms)
{
    struct timespec t;
    (void)ms;
    n_looks++;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* Until the thread has seen all connections at this time. */
static void go_to(double seconds)
{
    now_ms = (long long)(1000 * seconds);
    unsigned seen = n_looks;
    while (n_looks - seen < 2) nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* ------------------------------------------------------------------- connections */

typedef struct client {
    int fd, other; /* the connection, and the end of the client */
    deadline *d;
} client;

static client come(deadlines *all)
{
    client c;
    int both[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
    c.fd = both[0];
    c.other = both[1];
    c.d = deadlines_add(all, c.fd);
    assert_non_null(c.d);
    return c;
}

/* One that has come to a stage at this time. */
static client come_to(deadlines *all, deadline_stage stage)
{
    client c = come(all);
    for (int i = STAGE_HEADERS; i <= (int)stage; i++) deadline_begin(all, c.d, (deadline_stage)i);
    return c;
}

/* One that keeps its connection after an answer. */
static client come_again(deadlines *all)
{
    client c = come_to(all, STAGE_SENDING);
    deadline_begin(all, c.d, STAGE_LINE);
    return c;
}

static void leave(deadlines *all, client *c)
{
    deadlines_remove(all, c->d);
    close(c->fd);
    close(c->other);
}

static bool is_open(const client *c)
{
    char text[1024];
    ssize_t n = recv(c->other, text, sizeof text, MSG_DONTWAIT | MSG_PEEK);
    return n < 0;
}

/* What it was told. */
static const char *said(const client *c)
{
    static char text[1024];
    ssize_t n = recv(c->other, text, sizeof text - 1, MSG_DONTWAIT | MSG_PEEK);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static deadlines *start(uint32_t most_connections)
{
    deadlines_options o = deadlines_defaults(0, most_connections);
    deadlines *all = deadlines_create(&o);
    assert_non_null(all);
    return all;
}

/* ------------------------------------------------------------------------- tests */

static void test_defaults(void **state)
{
    (void)state;
    deadlines_options o = deadlines_defaults(0, 8192);
    assert_int_equal(o.line_ms, 15000);
    assert_int_equal(o.headers_ms, 15000);
    assert_int_equal(o.body_ms, 30000);
    assert_int_equal(o.body_rate, 1024);
    assert_int_equal(o.sending_ms, 60000);
    assert_int_equal(o.idle_ms, 60000);
    assert_int_equal(o.most, 6144);
    o = deadlines_defaults(2, 192); /* --client-seconds 2, ulimit -n 1024 */
    assert_int_equal(o.line_ms, 2000);
    assert_int_equal(o.body_ms, 4000);
    assert_int_equal(o.sending_ms, 8000);
    assert_int_equal(o.most, 144);
}

static void test_stages(void **state)
{
    static const struct {
        deadline_stage stage;
        double seconds;
        const char *answer;
    } cases[] = {{STAGE_LINE, 15, ""},
                 {STAGE_HEADERS, 15, "HTTP/1.1 408"},
                 {STAGE_BODY, 30, "HTTP/1.1 408"},
                 {STAGE_SENDING, 60, ""}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        now_ms = 0;
        deadlines *all = start(8192);
        client c = come_to(all, cases[i].stage);
        go_to(cases[i].seconds);
        assert_true(is_open(&c));
        go_to(cases[i].seconds + 0.001);
        assert_false(is_open(&c));
        assert_memory_equal(said(&c), cases[i].answer, strlen(cases[i].answer));
        leave(all, &c);
        deadlines_destroy(all);
    }
    now_ms = 0;
    deadlines *all = start(8192);
    client idle = come_again(all), answered = come_to(all, STAGE_ANSWER);
    go_to(75);
    assert_true(is_open(&idle));
    go_to(75.001);
    assert_false(is_open(&idle));
    go_to(1e6);
    assert_true(is_open(&answered)); /* an answer takes as long as it takes */
    leave(all, &idle);
    leave(all, &answered);
    deadlines_destroy(all);
}

/* A byte a second does not keep a body, and much at once does not keep one that is silent then. A KiB for each second does, for an hour. */
static void test_body(void **state)
{
    (void)state;
    now_ms = 0;
    deadlines *all = start(8192);
    client slow = come_to(all, STAGE_BODY), dripping = come_to(all, STAGE_BODY),
           sudden = come_to(all, STAGE_BODY);
    deadline_received(all, sudden.d, 100 << 20); /* would be worth a day */
    for (int t = 1; t <= 40; t++) {
        go_to(t);
        deadline_received(all, slow.d, 1024);
        deadline_received(all, dripping.d, 1);
        assert_int_equal(is_open(&sudden), t <= 30);
        assert_int_equal(is_open(&dripping), t <= 30); /* 30 bytes are worth 29 ms */
    }
    for (int t = 60; t <= 3600; t += 20) {
        go_to(t);
        deadline_received(all, slow.d, 20480);
    }
    assert_true(is_open(&slow));
    go_to(3630); /* the last bytes came at 3600 */
    assert_true(is_open(&slow));
    go_to(3630.001);
    assert_false(is_open(&slow));
    leave(all, &slow);
    leave(all, &dripping);
    leave(all, &sudden);
    deadlines_destroy(all);
}

/* Beyond three quarters of the connections each new one closes the one that has waited longest for its client. */
static void test_too_many(void **state)
{
    (void)state;
    now_ms = 0;
    deadlines *all = start(8); /* 6 may be open */
    client upload = come_to(all, STAGE_BODY), asked = come_to(all, STAGE_ANSWER);
    go_to(5);
    deadline_received(all, upload.d, 5 << 10);
    client dripping = come_to(all, STAGE_BODY);
    go_to(10);
    deadline_received(all, upload.d, 5 << 10);
    client idle = come_again(all);
    go_to(15);
    deadline_received(all, upload.d, 5 << 10);
    client headers = come_to(all, STAGE_HEADERS);
    go_to(19);
    deadline_received(all, upload.d, 4 << 10);
    deadline_received(all, dripping.d, 14);
    client line = come(all);
    go_to(20);
    assert_true(is_open(&dripping) && is_open(&idle) && is_open(&headers) && is_open(&line));

    client *in_order[] = {&dripping, &idle, &headers}, new[4];
    for (int i = 0; i < 3; i++) {
        new[i] = come_to(all, STAGE_ANSWER);
        assert_false(is_open(in_order[i]));
        for (int k = i + 1; k < 3; k++) assert_true(is_open(in_order[k]));
        assert_true(is_open(&line) && is_open(&upload) && is_open(&asked) && is_open(&new[i]));
    }
    assert_string_equal(said(&idle), ""); /* no request, no answer */
    assert_memory_equal(said(&headers), "HTTP/1.1 408", 12);
    deadline_received(all, upload.d, 1 << 10);
    leave(all, &new[0]); /* one less: there is room again */
    new[3] = come_to(all, STAGE_ANSWER);
    assert_true(is_open(&line) && is_open(&upload));
    new[0] = come_to(all, STAGE_ANSWER);
    assert_false(is_open(&line));
    assert_true(is_open(&upload) && is_open(&asked)); /* though nobody has come before them */

    for (int i = 0; i < 4; i++) leave(all, &new[i]);
    for (int i = 0; i < 3; i++) leave(all, in_order[i]);
    leave(all, &line);
    leave(all, &upload);
    leave(all, &asked);
    deadlines_destroy(all);
}

/* Of bodies the one that began first goes, whether it comes or not: all hold memory. */
static void test_memory(void **state)
{
    (void)state;
    now_ms = 0;
    deadlines *all = start(8192);
    client asked = come_to(all, STAGE_ANSWER), idle = come_again(all), headers = come_to(all, STAGE_HEADERS);
    go_to(1);
    client first = come_to(all, STAGE_BODY);
    go_to(2);
    client second = come_to(all, STAGE_BODY);
    go_to(3);
    deadline_received(all, first.d, 1 << 20);
    deadlines_need_memory(all);
    assert_false(is_open(&first));
    assert_true(is_open(&second) && is_open(&asked) && is_open(&idle) && is_open(&headers));
    deadlines_need_memory(all);
    assert_false(is_open(&second));
    deadlines_need_memory(all); /* there is none left */
    assert_true(is_open(&asked) && is_open(&idle) && is_open(&headers));
    leave(all, &first);
    leave(all, &second);
    leave(all, &asked);
    leave(all, &idle);
    leave(all, &headers);
    deadlines_destroy(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_defaults), cmocka_unit_test(test_stages),
                                       cmocka_unit_test(test_body), cmocka_unit_test(test_too_many),
                                       cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
