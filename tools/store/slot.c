/* SPDX-License-Identifier: MIT */
/* store_slot: quire store put-slot and get-slot: prompts shared between stock llama-servers. */
#define _POSIX_C_SOURCE 200809L
#include "files/slot_file.h"
#include "store/vouch.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LAYOUT_TEXT 8192

/* What the rows are, what they mean beyond their types, and what was vouched for: all of it is part of every key. */
static int open_namespace(store_options *o, quire_store *store, const slot_layout *layout,
                          quire_namespace **ns)
{
    quire_identity id;
    char text[LAYOUT_TEXT + 512], rows[LAYOUT_TEXT];
    int code = store_identity(o, &id);
    if (code) return code;
    slot_rows_print(layout, rows, sizeof rows);
    if (strlen(rows) + 1 >= sizeof rows) /* a part of it would not be an identity */
        return tool_failed(o->command, "the layers of this model are too many to be described");
    snprintf(text, sizeof text, "%s kv=%s " VOUCHED, rows, o->kv ? o->kv : "stock");
    quire_status status = quire_namespace_create_raw(ns, store, &id, text, layout->page_bytes);
    return status ? tool_failed(o->command, "%s", quire_status_text(status)) : TOOL_OK;
}

/* ----------------------------------------------------------------- put-slot */

#define BETWEEN_FLUSHES (64u << 20) /* bytes; the queue takes 256 MiB */

/* One page after the other. A command may wait where an engine must not, so that the queue never fills up. */
static quire_status save_pages(store_options *o, quire_store *store, quire_namespace *ns,
                               const slot_file *slot, uint32_t n_pages, uint8_t *page)
{
    const void *pages[1] = {page};
    quire_chain *chain = NULL;
    size_t waiting = 0;
    quire_status status = quire_chain_create(&chain, ns);
    if (!status) status = quire_chain_append(chain, slot->tokens, n_pages * QUIRE_PAGE_TOKENS, NULL, 0, 0);
    for (uint32_t i = 0; i < n_pages && !status; i++) {
        (void)slot_get_page(slot, i, page); /* what is kept was counted in this very slot */
        status = quire_chain_save_raw(chain, i, 1, pages, NULL);
        waiting += slot->layout.page_bytes;
        if (!status && (i % 32 == 31 || waiting >= BETWEEN_FLUSHES)) {
            status = quire_store_flush(store, (uint32_t)o->timeout_ms);
            waiting = 0;
        }
    }
    quire_chain_destroy(chain);
    return status;
}

static int put_pages(store_options *o, quire_store *store, quire_namespace *ns, const slot_file *slot)
{
    uint8_t *page = (uint8_t *)malloc(slot->layout.page_bytes);
    quire_status status =
        page ? save_pages(o, store, ns, slot, slot->n_cells / QUIRE_PAGE_TOKENS, page) : QUIRE_ENOMEM;
    free(page);
    if (!status) status = quire_store_flush(store, (uint32_t)o->timeout_ms);
    return status ? tool_failed(o->command, "%s", quire_status_text(status)) : TOOL_OK;
}

static int report_put(const store_options *o, quire_store *store, const slot_file *slot)
{
    quire_store_stats s = {.size = sizeof s};
    char layout[LAYOUT_TEXT];
    quire_store_stats_get(store, &s);
    slot_layout_print(&slot->layout, layout, sizeof layout);
    uint64_t saved = s.saved[0] + s.saved[1], known = s.known[0] + s.known[1];
    uint64_t lost = s.failed[0] + s.failed[1] + s.dropped[0] + s.dropped[1];
    if (o->json) {
        printf(
            "{\"tokens\":%u,\"cells\":%u,\"page_bytes\":%zu,\"saved\":%llu,\"known\":%llu,\"failed\":%llu,\"layout\":",
            slot->n_tokens, slot->n_cells, slot->layout.page_bytes, (unsigned long long)saved,
            (unsigned long long)known, (unsigned long long)lost);
        tool_json_string(stdout, layout);
        printf("}\n");
    } else {
        printf(
            "%u tokens, pages of %.2f MB: %llu saved, %llu already stored, %llu not saved\nlayout \"%s\"\n",
            slot->n_tokens, (double)slot->layout.page_bytes / 1e6, (unsigned long long)saved,
            (unsigned long long)known, (unsigned long long)lost, layout);
    }
    int code = tool_finish(o->command);
    return lost ? TOOL_FAILED : code;
}

static const char *set_server(void *ctx, const char *value)
{
    ((store_options *)ctx)->server = value;
    return vouch_is_url(value) ? NULL : "http://HOST:PORT";
}

/* Whether the rows are those that the tokens alone give: told by the operator, and asked where that is possible. */
static int vouch(const store_options *o, const slot_layout *layout)
{
    bool is_rotation_open =
        layout->rotation_k == SLOT_ROTATION_UNKNOWN || layout->rotation_v == SLOT_ROTATION_UNKNOWN;
    int code = o->server ? vouch_ask_server(o) : TOOL_OK;
    return !code && o->pid ? vouch_read_process(o, is_rotation_open) : code;
}

int store_put_slot(int argc, char **argv)
{
    static const tool_option more[] = {
        {"--computed-from-zero", NULL,
         "needed: you vouch that the server computed the slot from position 0,\nwithout --context-shift, --cache-reuse (n_cache_reuse of a request)\nor a LoRA adapter of a single request; the file does not say it",
         TOOL_FLAG(store_options, computed_from_zero)},
        {"--server", "URL",
         "ask this llama-server (http://HOST:PORT) which LoRA adapters it has and\nwhich ones its last requests chose; it does not tell more",
         .set = set_server},
        {"--pid", "N",
         "read the flags, the environment and the config.ini files of this llama-server,\nwhich runs on this machine: shift, re-use, adapters, RoPE",
         TOOL_NUMBER(store_options, pid, 1, 4194304)},
    };
    static const tool_command about = {
        .name = "store put-slot",
        .usage =
            "[--dir DIRECTORY] [--remote HOST:PORT] --model FILE --secret-file FILE --computed-from-zero SLOT",
        .about =
            "Splits a slot file of llama-server (POST /slots/0?action=save; state versions 3 and 4) into pages of 64 tokens and\n"
            "saves them. Prints the layout that get-slot needs. Works only for models with full attention in all layers, and\n"
            "without images. Slots whose cells are not in the order of their positions are refused.",
        .examples =
            "  quire store put-slot --remote cache:6379 --model m.gguf --secret-file tenant.key --computed-from-zero \\\n"
            "      --pid 4711 --server http://127.0.0.1:8080 slots/a.bin\n"
            "  quire store put-slot --dir /var/cache/quire --cap 64G --model m.gguf --secret-file tenant.key \\\n"
            "      --computed-from-zero a.bin\n",
        TOOL_ONE(store_options, file, "file"),
    };
    store_options o;
    slot_file slot;
    quire_store *store;
    quire_namespace *ns = NULL;
    int code = store_parse(&o, STORE_DISK | STORE_CAP | STORE_REMOTE | STORE_IDENTITY, &about, more,
                           sizeof more / sizeof more[0], argc, argv);
    if (code < 0 && !o.file) code = tool_usage(about.name, "give a slot file");
    if (code < 0 && !o.computed_from_zero)
        code = tool_usage(
            about.name,
            "give --computed-from-zero if the slot was computed from position 0 without --context-shift, --cache-reuse or a LoRA adapter of a request: a slot file does not say it, and other rows must not be stored");
    if (code >= 0) return code;
    const char *wrong = slot_read(&slot, o.file);
    if (wrong) return tool_failed(o.command, "%s: %s", o.file, wrong);
    slot_leave_out_zeros(&slot);
    code = vouch(&o, &slot.layout);
    if (!code) code = store_open(&o, &store);
    if (!code) {
        code = open_namespace(&o, store, &slot.layout, &ns);
        if (!code) code = put_pages(&o, store, ns, &slot);
        if (!code) code = report_put(&o, store, &slot);
        quire_namespace_destroy(ns);
        quire_store_close(store);
    }
    slot_free(&slot);
    return code;
}

/* ----------------------------------------------------------------- get-slot */

typedef struct prompt_tokens {
    uint32_t *id;
    uint32_t n, cap;
} prompt_tokens;

/* Numbers with anything between them that is no letter: a JSON list, lines, words. An object {"tokens":[...]} too. */
static const char *read_tokens(prompt_tokens *t, FILE *f)
{
    int c = fgetc(f);
    while (c != EOF) {
        if (c == '"') { /* a name */
            while ((c = fgetc(f)) != EOF && c != '"') {
            }
            c = fgetc(f);
        } else if (isdigit(c)) {
            uint64_t id = 0;
            for (; isdigit(c); c = fgetc(f))
                if ((id = id * 10 + (uint64_t)(c - '0')) > INT32_MAX) return "a token ID is too large";
            if (t->n == t->cap) {
                uint32_t cap = t->cap * 2 + 1024, *more = (uint32_t *)realloc(t->id, sizeof *more * cap);
                if (!more) return "out of memory";
                t->id = more;
                t->cap = cap;
            }
            t->id[t->n++] = (uint32_t)id;
        } else if (isalpha(c) || c == '-' || c == '.') {
            return "the file contains something that is not a token ID";
        } else {
            c = fgetc(f);
        }
    }
    return t->n ? NULL : "the file contains no token IDs";
}

typedef struct taken {
    uint8_t **pages;
    uint32_t n;
    size_t page_bytes;
    bool failed;
} taken;

static void take_page(void *ctx, uint32_t page_index, const void *bytes)
{
    taken *t = (taken *)ctx;
    uint8_t *copy = (uint8_t *)malloc(t->page_bytes);
    if (!copy || t->failed || page_index != t->n) {
        t->failed = true;
        free(copy);
        return;
    }
    memcpy(copy, bytes, t->page_bytes);
    t->pages[t->n++] = copy;
}

static int get_pages(store_options *o, quire_store *store, quire_namespace *ns, const slot_layout *layout,
                     const prompt_tokens *t)
{
    uint32_t n_tokens = 0;
    quire_prompt prompt = {.size = sizeof(quire_prompt), .tokens = t->id, .n_tokens = t->n};
    taken got = {.pages = (uint8_t **)calloc(t->n / QUIRE_PAGE_TOKENS + 1, sizeof(uint8_t *)),
                 .page_bytes = layout->page_bytes};
    int code = TOOL_OK;
    quire_status status =
        got.pages ? quire_namespace_load_raw(ns, &prompt, (uint32_t)o->timeout_ms, take_page, &got, &n_tokens)
                  : QUIRE_ENOMEM;
    (void)quire_store_flush(store, (uint32_t)o->timeout_ms); /* what came from the remote goes to the disk */
    if (status || got.failed)
        code = tool_failed(o->command, "out of memory");
    else if (got.n) {
        const char *wrong = slot_write(o->file, layout, t->id, got.pages, got.n, (uint32_t)o->n_streams);
        if (wrong) code = tool_failed(o->command, "%s: %s", o->file, wrong);
    }
    if (!code) {
        printf(o->json ? "{\"tokens\":%u,\"of\":%u,\"vouched\":\"" VOUCHED "\"}\n"
                       : "%u of %u tokens, vouched: " VOUCHED "\n",
               n_tokens, t->n);
        code = got.n ? tool_finish(o->command) : TOOL_FAILED;
    }
    for (uint32_t i = 0; i < got.n; i++) free(got.pages[i]);
    free(got.pages);
    return code;
}

static const char *find_layout(const store_options *o, slot_layout *layout)
{
    slot_file slot;
    if (o->layout) return slot_layout_parse(layout, o->layout);
    const char *wrong = slot_read(&slot, o->like);
    if (wrong) return wrong;
    slot_leave_out_zeros(&slot);
    *layout = slot.layout;
    slot_free(&slot);
    return NULL;
}

int store_get_slot(int argc, char **argv)
{
    static const tool_option more[] = {
        {"--tokens", "FILE",
         "token IDs of the prompt: the answer of /tokenize, or plain numbers;\n- reads standard input",
         TOOL_WORD(store_options, tokens)},
        {"--like", "SLOT", "any slot file of a server with the same flags, to take types and\nsizes from",
         TOOL_WORD(store_options, like)},
        {"--layout", "TEXT", "instead of --like: the layout that put-slot printed",
         TOOL_WORD(store_options, layout)},
        {"--streams", "N",
         "number of slots of the server that will restore the file, if that\nserver runs with --no-kv-unified (default: 1)",
         TOOL_NUMBER(store_options, n_streams, 1, 256)},
    };
    static const tool_command about = {
        .name = "store get-slot",
        .usage =
            "[--dir DIRECTORY] [--remote HOST:PORT] --model FILE --secret-file FILE --like SLOT --tokens FILE SLOT",
        .about =
            "Writes a slot file with the longest stored prefix of a prompt, for POST /slots/0?action=restore; only you can read it\n"
            "(mode 0600). It has the version of --like or --layout. If no prefix is stored, it writes no file and the exit code\n"
            "is 1.",
        .examples = "  quire store get-slot --remote cache:6379 --model m.gguf --secret-file tenant.key \\\n"
                    "      --like slots/any.bin --tokens prompt.json slots/b.bin\n",
        TOOL_ONE(store_options, file, "file"),
    };
    store_options o;
    slot_layout *layout = (slot_layout *)malloc(sizeof *layout);
    prompt_tokens t = {0};
    quire_store *store;
    quire_namespace *ns = NULL;
    if (!layout) return tool_failed(about.name, "out of memory");
    int code = store_parse(&o, STORE_DISK | STORE_CAP | STORE_REMOTE | STORE_IDENTITY, &about, more,
                           sizeof more / sizeof more[0], argc, argv);
    if (code < 0 && (!o.file || !o.tokens || !o.layout == !o.like))
        code = tool_usage(about.name,
                          "give --tokens FILE, either --like SLOT or --layout TEXT, and a file to write");
    const char *wrong = code < 0 ? find_layout(&o, layout) : NULL;
    if (wrong) code = tool_failed(about.name, "%s: %s", o.like ? o.like : "--layout", wrong);
    bool parsed = code < 0;
    if (code < 0) {
        FILE *f = strcmp(o.tokens, "-") == 0 ? stdin : fopen(o.tokens, "r");
        wrong = f ? read_tokens(&t, f) : strerror(errno);
        if (f && f != stdin) fclose(f);
        if (wrong) code = tool_failed(about.name, "%s: %s", o.tokens, wrong);
    }
    if (code < 0) code = store_open(&o, &store);
    if (code == TOOL_OK && parsed) {
        code = open_namespace(&o, store, layout, &ns);
        if (!code) code = get_pages(&o, store, ns, layout, &t);
        quire_namespace_destroy(ns);
        quire_store_close(store);
    }
    free(t.id);
    free(layout);
    return code;
}
