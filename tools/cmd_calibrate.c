/* SPDX-License-Identifier: MIT */
/* quire calibrate: a profile of a model, recorded by the device inside an unmodified llama-perplexity. */
#define _POSIX_C_SOURCE 200809L
#include <quire/quire.h>

#include "commands.h"

#include "common/child.h"
#include "common/place.h"
#include "common/progress.h"
#include "common/tool.h"
#include "llama/profile.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct calibrate {
    const char *model, *llama, *text, *out;
    uint64_t ctx, chunks, length, check, threads;
    bool json;
    char program[PLACE_SIZE], plugin[PLACE_SIZE], profile[PLACE_SIZE];
    char learn[64], judge[64], logits[64]; /* temporary files */
} calibrate;

/* ----------------------------------------------------------------- options */

static const tool_option options[] = {
    {"--llama", "DIR", "directory of llama-perplexity (default: search PATH)", TOOL_WORD(calibrate, llama)},
    {"--text", "FILE",
     "a text of the kind that you will serve, 100 KB or more\n(default: the text that comes with Quire)",
     TOOL_WORD(calibrate, text)},
    {"--out", "FILE", "the profile to write (default: MODEL.quire-profile, next to the model)",
     TOOL_WORD(calibrate, out)},
    {"--length", "N", "longest context that will be served (default: 8192)",
     TOOL_NUMBER(calibrate, length, 64, 1u << 24)},
    {"--ctx", "N", "tokens per piece of text (default: 2048)", TOOL_NUMBER(calibrate, ctx, 64, 1u << 20)},
    {"--chunks", "N", "pieces to make the profile from (default: 12)",
     TOOL_NUMBER(calibrate, chunks, 1, 4096)},
    {"--check", "N", "pieces of 512 tokens to measure the gain on; 0 measures nothing (default: 4)",
     TOOL_NUMBER(calibrate, check, 0, 64)},
    {"--threads", "N", "number of threads (default: 2)", TOOL_NUMBER(calibrate, threads, 1, 1024)},
    {"--json", NULL, "print the result as one JSON object", TOOL_FLAG(calibrate, json)},
};

static const tool_command command = {
    .name = "calibrate",
    .usage = "[OPTIONS] MODEL.gguf",
    .about =
        "Records a profile of a model's keys and queries. With a profile you can use c: codecs, and the presets balanced\n"
        "and small store K in one bit less at the same loss. The command runs an unmodified llama-perplexity over the text\n"
        "with Quire's device loaded. Then it measures the gain on another part of the text.",
    .examples =
        "  quire calibrate model.gguf\n"
        "  quire calibrate --llama ~/llama.cpp/build/bin --length 32768 model.gguf\n"
        "  quire run --kv balanced -- llama-server -m model.gguf     uses the profile next to the model\n",
    TOOL_OPTIONS(options),
    TOOL_ONE(calibrate, model, "model"),
};

/* ------------------------------------------------------------------- texts */

static bool make_file(char *path, size_t size, const char *what)
{
    const char *dir = getenv("TMPDIR");
    if (snprintf(path, size, "%s/quire-%s-XXXXXX", dir && strlen(dir) < 40 ? dir : "/tmp", what) >= (int)size)
        return false;
    int fd = mkstemp(path);
    if (fd < 0) {
        path[0] = 0;
        return false;
    }
    close(fd);
    return true;
}

/* Copies bytes [from, to) of a file. */
static bool copy_part(FILE *in, const char *path, long from, long to)
{
    char block[65536];
    FILE *out = fopen(path, "wb");
    bool right = out && !fseek(in, from, SEEK_SET);
    while (right && from < to) {
        size_t want = to - from < (long)sizeof block ? (size_t)(to - from) : sizeof block;
        size_t n = fread(block, 1, want, in);
        right = n && fwrite(block, 1, n, out) == n;
        from += (long)n;
    }
    if (out && fclose(out)) right = false;
    return right;
}

/* The first four fifths to learn from, the rest to judge by. */
static bool split_text(calibrate *c, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) return false;
    bool right = !fseek(in, 0, SEEK_END);
    long size = right ? ftell(in) : -1;
    right = size > 0 && make_file(c->learn, sizeof c->learn, "learn") &&
            make_file(c->judge, sizeof c->judge, "judge") && copy_part(in, c->learn, 0, size / 5 * 4) &&
            copy_part(in, c->judge, size / 5 * 4, size);
    fclose(in);
    return right;
}

/* -------------------------------------------------------------- perplexity */

/* What llama-perplexity writes: "[7]12.34," after each chunk, and a table at the end. The tail is kept for messages. */
typedef struct listener {
    progress bar;
    char tail[8192];
    size_t n;
    int chunk;
} listener;

static void listen(void *ctx, const char *text, size_t n)
{
    listener *l = ctx;
    size_t room = sizeof l->tail - 1, keep;
    if (n > room) {
        text += n - room;
        n = room;
    }
    keep = l->n + n > room ? room - n : l->n;
    memmove(l->tail, l->tail + l->n - keep, keep);
    memcpy(l->tail + keep, text, n);
    l->n = keep + n;
    l->tail[l->n] = 0;
    for (const char *at = strchr(l->tail, '['); at; at = strchr(at + 1, '[')) {
        char *end;
        long chunk = strtol(at + 1, &end, 10);
        if (*end == ']' && chunk == l->chunk + 1) l->chunk++;
    }
    progress_show(&l->bar, l->chunk);
}

typedef struct job {
    const char *what, *text, *policy, *profile, *record; /* NULL: not given */
    const char *length;
    bool save, compare; /* logits */
    uint64_t ctx, chunks;
} job;

static bool perform(const calibrate *c, const job *j, listener *l)
{
    char ctx[32], chunks[32], threads[32];
    snprintf(ctx, sizeof ctx, "%llu", (unsigned long long)j->ctx);
    snprintf(chunks, sizeof chunks, "%llu", (unsigned long long)j->chunks);
    snprintf(threads, sizeof threads, "%llu", (unsigned long long)c->threads);
    /* All layers are Quire's, also where there is a GPU. */
    const char *argv[32] = {c->program, "-m",   c->model, "-f",    j->text,  "-c",   ctx,
                            "--chunks", chunks, "-t",     threads, "-ctk",   "f16",  "-ctv",
                            "f16",      "-fa",  "on",     "-dev",  "QUIRE0", "-ngl", "999"};
    int n = 21;
    if (j->compare) argv[n++] = "--kl-divergence";
    if (j->save || j->compare) argv[n++] = "--kl-divergence-base", argv[n++] = c->logits;
    argv[n] = NULL;
    child_variable variables[] = {{"GGML_BACKEND_PATH", c->plugin},
                                  {"QUIRE_KV", j->policy},
                                  {"QUIRE_PROFILE", j->profile},
                                  {"QUIRE_PROFILE_RECORD", j->record},
                                  {"QUIRE_PROFILE_LENGTH", j->length},
                                  {"QUIRE_ROWS_RECORD", NULL},
                                  {"QUIRE_CONFIG", NULL},
                                  {"QUIRE_LOG", "1"},
                                  {NULL, NULL}};
    *l = (listener){.chunk = 0};
    progress_start(&l->bar, j->what, "pieces", j->compare ? 0 : (double)j->chunks);
    child run = {.argv = argv, .variables = variables, .output = listen, .ctx = l};
    int status = child_run(&run);
    progress_end(&l->bar);
    if (!status) return true;
    const char *end = l->n > 600 ? l->tail + l->n - 600 : l->tail;
    tool_failed("calibrate", "%s failed with exit code %d; its last output was:\n%s", c->program, status,
                end);
    return false;
}

static double figure(const listener *l, const char *name)
{
    const char *at = strstr(l->tail, name);
    return at ? strtod(at + strlen(name), NULL) : -1;
}

/* --------------------------------------------------------------------- gain */

/* Root of the mean square over the layers, and the worst of them. */
static void score_errors(const quire_profile *profile, const char *codec, double *mean, double *worst)
{
    double e;
    uint32_t n = 0;
    *mean = *worst = 0;
    while (!quire_profile_score_error(profile, n, codec, &e)) {
        *mean += e * e;
        if (e > *worst) *worst = e;
        n++;
    }
    *mean = n ? sqrt(*mean / n) : 0;
}

static int tell_estimate(const calibrate *c)
{
    static const char *const pairs[][2] = {
        {"r3", "c:r3"}, {"r4", "c:r4"}, {"r5", "c:r5"}, {"r6", "c:r6"}, {"r8", "c:r8"}};
    quire_profile *profile = NULL;
    quire_status status = profile_load(&profile, c->profile);
    if (status) return tool_failed("calibrate", "%s: %s", c->profile, quire_status_text(status));
    if (c->json)
        printf("{\"profile\":"), tool_json_string(stdout, c->profile), printf(",\"score_error\":{");
    else
        printf("profile: %s\n\nestimated error of attention scores (all layers, worst layer):\n", c->profile);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        double mean[2], worst[2];
        for (int j = 0; j < 2; j++) score_errors(profile, pairs[i][j], &mean[j], &worst[j]);
        if (c->json)
            printf("%s\"%s\":%.4g,\"%s\":%.4g", i ? "," : "", pairs[i][0], mean[0], pairs[i][1], mean[1]);
        else
            printf("  %-4s %7.4f %7.4f    with the profile %7.4f %7.4f\n", pairs[i][0], mean[0], worst[0],
                   mean[1], worst[1]);
    }
    if (c->json) printf("}");
    quire_profile_destroy(profile);
    return TOOL_OK;
}

static int tell_measured(calibrate *c)
{
    static const char *const policies[] = {"r4", "c:r4/r4", "balanced", "small"};
    listener l;
    job base = {.what = "measuring", .text = c->judge, .save = true, .ctx = 512, .chunks = c->check};
    if (!make_file(c->logits, sizeof c->logits, "logits"))
        return tool_failed("calibrate", "cannot create a temporary file");
    if (!perform(c, &base, &l)) return TOOL_FAILED;
    printf(c->json ? ",\"measured\":{"
                   : "\nmeasured against f16, on %llu x 512 tokens that are not part of the profile:\n",
           (unsigned long long)c->check);
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        job j = base;
        j.save = false;
        j.compare = true;
        j.policy = policies[i];
        j.profile = strcmp(policies[i], "r4") ? c->profile : NULL;
        if (!perform(c, &j, &l)) return TOOL_FAILED;
        double kld = figure(&l, "Mean    KLD:"), top = figure(&l, "Same top p:");
        if (c->json)
            printf("%s\"%s\":{\"kld\":%g,\"top1\":%g}", i ? "," : "", policies[i], kld, top);
        else
            printf("  %-9s mean KL %.5f, same most likely token %.1f %%\n", policies[i], kld, top);
        fflush(stdout);
    }
    if (c->json) printf("}");
    return TOOL_OK;
}

/* --------------------------------------------------------------------- main */

static bool name_profile(calibrate *c)
{
    if (!c->out) return model_profile_path(c->profile, sizeof c->profile, c->model);
    return snprintf(c->profile, sizeof c->profile, "%s", c->out) < (int)sizeof c->profile;
}

static int run(calibrate *c)
{
    char text[PLACE_SIZE];
    listener l;
    if (access(c->model, R_OK)) return tool_failed("calibrate", "%s: %s", c->model, strerror(errno));
    if (!place_program(c->program, c->llama, "llama-perplexity"))
        return tool_failed("calibrate",
                           "llama-perplexity was not found in %s; name its directory with --llama DIR",
                           c->llama ? c->llama : "PATH");
    if (!place_plugin(c->plugin))
        return tool_failed(
            "calibrate", "libggml-quire.so was not found next to this program; set QUIRE_PLUGIN to its path");
    if (!c->text && !place_shared(text, "eval/text/calibrate.txt"))
        return tool_failed("calibrate",
                           "the text that comes with Quire was not found; name a text with --text FILE");
    if (!name_profile(c)) return tool_failed("calibrate", "the file name of the profile is too long");
    if (!split_text(c, c->text ? c->text : text))
        return tool_failed("calibrate", "%s: %s", c->text ? c->text : text, strerror(errno));
    char length[32];
    snprintf(length, sizeof length, "%llu", (unsigned long long)c->length);
    job record = {.what = "recording",
                  .text = c->learn,
                  .record = c->profile,
                  .length = length,
                  .ctx = c->ctx,
                  .chunks = c->chunks};
    remove(c->profile);
    if (!perform(c, &record, &l)) return TOOL_FAILED;
    if (access(c->profile, R_OK))
        return tool_failed("calibrate", "llama-perplexity did not use the device, so nothing was recorded; "
                                        "docs/llama.cpp.md lists possible reasons");
    int code = tell_estimate(c);
    if (code == TOOL_OK && c->check) code = tell_measured(c);
    if (c->json) printf("}\n");
    return code == TOOL_OK ? tool_finish("calibrate") : code;
}

int cmd_calibrate(int argc, char **argv)
{
    calibrate c = {.ctx = 2048, .chunks = 12, .length = 8192, .check = 4, .threads = 2};
    int code = tool_parse(&command, argc, argv, &c);
    if (code >= 0) return code;
    if (!c.model) return tool_usage("calibrate", "give a model file; see quire calibrate --help");
    code = run(&c);
    const char *files[] = {c.learn, c.judge, c.logits};
    for (size_t i = 0; i < 3; i++)
        if (*files[i]) remove(files[i]);
    return code;
}
