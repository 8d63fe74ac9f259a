/* SPDX-License-Identifier: MIT */
/* Requests that programs on their way could read in different ways are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "serve/form.h"

#include <string.h>

/* The status of a request with these headers, beside Host. */
static unsigned judge(const char *const (*headers)[2], size_t n)
{
    form f = {0};
    form_line(&f, "POST", "/infill");
    form_header(&f, "Host", 4, "x", 1);
    for (size_t i = 0; i < n; i++)
        form_header(&f, headers[i][0], strlen(headers[i][0]), headers[i][1], strlen(headers[i][1]));
    form_end(&f, "HTTP/1.1", 1000);
    return f.status;
}

static unsigned judge_connection(const char *value)
{
    const char *const headers[][2] = {
        {"Content-Type", "multipart/form-data; boundary=b"}, {"Content-Length", "2"}, {"Connection", value}};
    return judge(headers, 3);
}

static void test_connection(void **state)
{
    static const char *const good[] = {
        "close", "keep-alive", "Upgrade, HTTP2-Settings", "TE", "X-Content-Type", "Content-Typ", ""};
    static const char *const bad[] = {
        "Content-Type",   "content-type",     "close,Content-Type", "close , \tCONTENT-TYPE ,x",
        "Content-Length", "Content-Encoding", "transfer-encoding",  "Authorization",
        "x-api-key"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (judge_connection(good[i])) fail_msg("Connection: %s is refused", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (judge_connection(bad[i]) != 400) fail_msg("Connection: %s is taken", bad[i]);
}

static void test_several(void **state)
{
    static const char *const types[][2] = {{"Content-Type", "application/json"},
                                           {"content-type", "text/plain"}};
    static const char *const named_twice[][2] = {{"Connection", "close"}, {"connection", "Content-Type"}};
    static const char *const packed[][2] = {{"Content-Encoding", "gzip"}};
    (void)state;
    assert_int_equal(judge(types, 1), 0);
    assert_int_equal(judge(types, 2), 400);
    assert_int_equal(judge(named_twice, 1), 0);
    assert_int_equal(judge(named_twice, 2), 400);
    assert_int_equal(judge(packed, 1), 415);
}

/* A target goes into the log: no commands to a terminal, in whichever coding. */
static void test_targets(void **state)
{
    static const char *const good[] = {"/health", "/v1/models?a=%C3%A9", "/~x/a'b(c)!$&*+,;=:@"};
    static const char *const bad[] = {"/a\033[2J",    "/a\x9b\x32J", "/a\xc2\x9b\x32J",
                                      "/caf\xc3\xa9", "/a?b=\xff",   "/a\x7f"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        form f = {0};
        form_line(&f, "GET", good[i]);
        if (f.status) fail_msg("%s is refused", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        form f = {0};
        form_line(&f, "GET", bad[i]);
        if (f.status != 400) fail_msg("target %zu is taken", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_connection), cmocka_unit_test(test_several),
                                       cmocka_unit_test(test_targets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
