/* SPDX-License-Identifier: MIT */
/* Sessions of the fleet: of the digest in eval/sessions, begun again and again, or a trace of scripts/replay-sessions. */
#include "store/fleet/fleet.h"

#include <math.h>
#include <stdlib.h>

/* A line of the digest or of a trace. */
typedef struct line {
    double t;
    uint32_t tokens, answer, pages, shared, told, answered;
    uint64_t chooses;
    uint32_t *numbers; /* of the pages; NULL: made up */
} line;

typedef struct script {
    line *lines;
    uint32_t n;
    uint64_t tools, system; /* tokens */
} script;

struct session {
    const script *script;
    uint64_t number; /* from 1 on: no two have the same private text */
    uint32_t at;
    uint32_t *versions; /* of each stretch */
    uint32_t n_versions, last_version;
};

static script *scripts;
static uint32_t n_scripts;
static table seen; /* all stretches that anyone has asked for */

uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static double random_next(void)
{
    static uint64_t state;
    if (!state) state = mix((uint64_t)set.seed);
    state += 0x9E3779B97F4A7C15u;
    return (double)(mix(state) >> 11) / 9007199254740992.0;
}

static line *add_line(script *s)
{
    s->lines = (line *)realloc(s->lines, sizeof *s->lines * (s->n + 1));
    if (!s->lines) abort();
    s->lines[s->n] = (line){0};
    return &s->lines[s->n++];
}

static script *script_of(uint32_t number)
{
    while (n_scripts <= number) {
        scripts = (script *)realloc(scripts, sizeof *scripts * (n_scripts + 1));
        if (!scripts) abort();
        scripts[n_scripts++] = (script){0};
    }
    return &scripts[number];
}

static void read_digest(FILE *f)
{
    char text[512];
    uint32_t number, which, tokens, answer, pages, shared, best, tools, system, last = 0;
    double t;
    while (fgets(text, sizeof text, f)) {
        if (sscanf(text, "%u,%u,%lf,%u,%u,%u,%u,%u,%u,%u", &number, &which, &t, &tokens, &answer, &pages,
                   &shared, &best, &tools, &system) != 10)
            continue;
        script *s = script_of(last && number == last ? n_scripts - 1 : n_scripts);
        last = number;
        s->tools = tools;
        s->system = system;
        line *l = add_line(s);
        *l = (line){.t = t, .tokens = tokens, .answer = answer, .pages = tokens / PAGE, .shared = shared};
        uint32_t before = s->n > 1 ? s->lines[s->n - 2].pages : 0;
        if (l->shared > l->pages) l->shared = l->pages;
        if (l->shared > before) l->shared = before;
        if (s->n > 1 && t < s->lines[s->n - 2].t) l->t = s->lines[s->n - 2].t;
    }
}

static void read_trace(FILE *f)
{
    static char text[1 << 20];
    while (fgets(text, sizeof text, f)) {
        unsigned long long chooses;
        uint32_t number, tokens, answer, told, answered;
        double t;
        int at;
        if (sscanf(text, "%lf %u %llu %u %u %u %u %n", &t, &number, &chooses, &tokens, &answer, &told,
                   &answered, &at) < 7)
            continue;
        line *l = add_line(script_of(number));
        *l = (line){.t = t,
                    .tokens = tokens,
                    .answer = answer,
                    .chooses = chooses,
                    .told = told,
                    .answered = answered};
        l->numbers = (uint32_t *)malloc(sizeof *l->numbers * (tokens / PAGE + 1));
        char *from = text + at, *end;
        for (; l->pages < tokens / PAGE; l->pages++, from = end) {
            l->numbers[l->pages] = (uint32_t)strtoul(from, &end, 10);
            if (end == from) break;
        }
    }
}

void sessions_begin(void)
{
    FILE *f = fopen(set.trace ? set.trace : set.sessions, "r");
    if (!f) {
        perror(set.trace ? set.trace : set.sessions);
        exit(1);
    }
    if (set.trace)
        read_trace(f);
    else
        read_digest(f);
    fclose(f);
}

/* ----------------------------------------------------------------- requests */

static quire_key key_of(uint64_t a, uint64_t b)
{
    quire_key key;
    for (uint32_t i = 0; i < 4; i++) quire_store64(key.byte + 8 * i, mix(mix(a + i) ^ b));
    return key;
}

/* Tools, tools and system text, and what no other has. */
static quire_key stretch_key(const session *s, uint32_t i, uint64_t grain)
{
    uint64_t end = (i + 1) * grain * PAGE;
    if (end <= s->script->tools) return key_of(s->script->tools << 32, i);
    if (end <= s->script->tools + s->script->system)
        return key_of(s->script->tools << 32 | s->script->system, i);
    return key_of(s->number << 1 | 1ull << 63, (uint64_t)s->versions[i] << 32 | i);
}

static void set_versions(session *s, uint32_t shared, uint32_t n)
{
    if (n > s->n_versions) {
        s->versions = (uint32_t *)realloc(s->versions, sizeof *s->versions * n);
        if (!s->versions) abort();
        s->n_versions = n;
    }
    s->last_version++;
    for (uint32_t i = shared; i < n; i++) s->versions[i] = s->last_version;
}

static uint64_t chooser(const request *r, const line *l, uint32_t grain)
{
    if (l->numbers) return l->chooses;
    uint32_t page = (uint32_t)set.affinity_token / PAGE;
    if (page > r->pages) page = r->pages;
    uint32_t i = page ? (page - 1) / grain : 0;
    /* A prompt that ends before: its last page, which the next prompt has in another place. */
    return i < r->n ? quire_load64(r->keys[i].byte) : mix(session_number(r->session) << 20 | r->number);
}

request *session_ask(session *s, double now)
{
    const line *l = &s->script->lines[s->at];
    uint32_t grain = (uint32_t)set.grain;
    request *r = (request *)calloc(1, sizeof *r);
    if (!r) abort();
    *r = (request){.session = s,
                   .arrived = now,
                   .number = s->at,
                   .tokens = l->tokens,
                   .pages = l->pages,
                   .answer = l->answer,
                   .shared = l->shared,
                   .n = l->pages / grain,
                   .told = l->told,
                   .answered = l->answered};
    r->keys = (quire_key *)malloc(sizeof *r->keys * (r->n + 1));
    r->marks = (uint32_t *)malloc(sizeof *r->marks * (r->n + 1));
    if (!r->keys || !r->marks) abort();
    if (!l->numbers) set_versions(s, l->shared / grain, r->n);
    uint32_t known = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        r->keys[i] = l->numbers ? key_of(l->numbers[i], 1) : stretch_key(s, i, grain);
        r->marks[i] = (uint32_t)quire_load64(r->keys[i].byte + 8);
        bool is_known = table_find(&seen, &r->keys[i]);
        if (is_known && known == i) known++;
        if (!is_known) (void)table_add(&seen, &r->keys[i]);
    }
    r->ideal = known * grain;
    if (known >= r->shared / grain && r->shared > r->ideal) r->ideal = r->shared;
    if (r->ideal && r->ideal * PAGE >= r->tokens) r->ideal = (r->tokens - 1) / PAGE;
    r->chooses = chooser(r, l, grain);
    return r;
}

static session *begin(const script *from)
{
    static uint64_t n;
    session *s = (session *)calloc(1, sizeof *s);
    if (!s) abort();
    *s = (session){.script = from, .number = ++n};
    return s;
}

void sessions_each_first(void (*fn)(session *s, double t))
{
    if (set.trace) {
        for (uint32_t i = 0; i < n_scripts; i++)
            if (scripts[i].n) fn(begin(&scripts[i]), scripts[i].lines[0].t);
        return;
    }
    double rate = set.sessions_per_hour * set.servers / 3600;
    for (double t = 0; (t -= log(1 - random_next()) / rate) < 3600 * set.hours;)
        fn(begin(&scripts[(uint32_t)(random_next() * n_scripts)]), t);
}

session *sessions_next(request *r, double now, double *due)
{
    session *s = r->session;
    double last = s->script->lines[s->at].t, arrived = r->arrived;
    request_free(r);
    if (++s->at == s->script->n) {
        free(s->versions);
        free(s);
        return NULL;
    }
    double next = s->script->lines[s->at].t;
    *due = set.trace ? next : arrived + next - last;
    if (*due < now) *due = now;
    return s;
}

uint64_t session_number(const session *s)
{
    return s->number;
}

void request_free(request *r)
{
    free(r->keys);
    free(r->marks);
    free(r);
}
