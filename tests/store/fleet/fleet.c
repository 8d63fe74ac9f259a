/* SPDX-License-Identifier: MIT */
/* quire_fleet NAME=VALUE...: simulates a fleet and prints a line of JSON. scripts/simulate-fleet runs it. */
#include "serve/choose.h"
#include "store/fleet/fleet.h"

#include <math.h>
#include <stdlib.h>

settings set = {
#define SETTING_VALUE(name, value) .name = (value),
    SETTINGS(SETTING_VALUE)
#undef SETTING_VALUE
};

/* ------------------------------------------------------------------- events */

typedef enum event_kind { BEGIN, ASK, LOADED, FIRST, ANSWERED, SAVE, KILL } event_kind;

typedef struct event {
    double t;
    uint64_t order;
    event_kind kind;
    uint32_t server;
    void *what; /* session or request */
} event;

static event *heap;
static size_t n_heap, cap_heap;

static bool is_before(const event *a, const event *b)
{
    return a->t < b->t || (a->t <= b->t && a->order < b->order);
}

static void at(double t, event_kind kind, uint32_t where, void *what)
{
    static uint64_t order;
    if (n_heap + 1 >= cap_heap) {
        cap_heap = cap_heap ? 2 * cap_heap : 1024;
        heap = (event *)realloc(heap, sizeof *heap * cap_heap);
        if (!heap) abort();
    }
    event e = {t, order++, kind, where, what};
    size_t i = ++n_heap;
    for (; i > 1 && is_before(&e, &heap[i / 2]); i /= 2) heap[i] = heap[i / 2];
    heap[i] = e;
}

static event next(void)
{
    event first = heap[1], last = heap[n_heap--];
    size_t i = 1;
    for (size_t k; (k = 2 * i) <= n_heap; i = k) {
        if (k < n_heap && is_before(&heap[k + 1], &heap[k])) k++;
        if (!is_before(&heap[k], &last)) break;
        heap[i] = heap[k];
    }
    heap[i] = last;
    return first;
}

/* ------------------------------------------------------------------ gateway */

static server *servers;
static uint32_t n_servers, n_alive;
static remote far;
static uint64_t in_flight;

/* As the gateway does: the key is of tools, system text and the first message, which no other session has. */
static uint32_t choose_as_gateway(const request *r)
{
    static choose_entry *entries;
    if (!entries) entries = (choose_entry *)calloc(n_servers, sizeof *entries);
    if (!entries) abort();
    for (uint32_t i = 0; i < n_servers; i++)
        entries[i] = (choose_entry){mix(i + 1), servers[i].in_flight, !servers[i].is_dead};
    uint64_t key = set.trace ? r->chooses : mix(session_number(r->session));
    return (uint32_t)choose_replica(key, entries, n_servers);
}

/* The server before which nobody of higher rank is below the bound. */
static uint32_t choose(const request *r)
{
    if (set.rule > 3.5) return choose_as_gateway(r);
    double bound = fmax(set.bound * (double)(in_flight + 1) / n_alive, set.least_bound);
    if (set.rule > 2.5 && r->answered < n_servers && !servers[r->answered].is_dead) return r->answered;
    uint32_t best = n_servers, second = n_servers, found = n_servers, least = n_servers;
    uint64_t best_score = 0, second_score = 0, found_score = 0;
    for (uint32_t i = 0; i < n_servers; i++) {
        if (servers[i].is_dead) continue;
        uint64_t key = set.rule > 1.5 ? r->chooses + mix(r->number) + session_number(r->session) : r->chooses;
        uint64_t score = mix(key ^ mix(i + 1));
        if (least == n_servers || servers[i].in_flight < servers[least].in_flight) least = i;
        if (best == n_servers || score > best_score) {
            second = best;
            second_score = best_score;
            best = i;
            best_score = score;
        } else if (second == n_servers || score > second_score) {
            second = i;
            second_score = score;
        }
        if (servers[i].in_flight + 1 <= bound && (found == n_servers || score > found_score)) {
            found = i;
            found_score = score;
        }
    }
    if (set.rule > 0.5 && set.rule < 1.5) return found < n_servers ? found : least;
    bool is_full = servers[best].in_flight + 1 > bound;
    return is_full && second < n_servers && servers[second].in_flight < servers[best].in_flight ? second
                                                                                                : best;
}

/* ------------------------------------------------------------------ figures */

static struct {
    uint64_t requests, tokens, pages, ideal, reused, from[PLACES], told, same_server;
    float *first;
    size_t n_first, cap_first;
} sum;

static void count_request(const request *r, const server *s)
{
    uint64_t reused = 0;
    for (uint32_t i = 0; i < PLACES; i++) {
        sum.from[i] += r->from[i];
        reused += r->from[i];
    }
    reused *= PAGE;
    const slot_state *h = &s->held[r->lease.slot];
    if (set.trace && r->warm && r->warm == h->pages)
        reused = h->tokens < r->tokens ? h->tokens : r->tokens - 1;
    sum.requests++;
    sum.tokens += r->tokens;
    sum.pages += r->pages;
    sum.ideal += (uint64_t)r->ideal * PAGE;
    sum.reused += reused;
    sum.told += r->told;
    sum.same_server += r->answered == r->server;
    if (sum.n_first == sum.cap_first) {
        sum.cap_first = sum.cap_first ? 2 * sum.cap_first : 1024;
        sum.first = (float *)realloc(sum.first, sizeof *sum.first * sum.cap_first);
        if (!sum.first) abort();
    }
    sum.first[sum.n_first++] = (float)(r->first - r->arrived);
}

static int compare(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double part_of_first(double share)
{
    return sum.n_first ? (double)sum.first[(size_t)(share * (double)(sum.n_first - 1))] : 0;
}

static double mean_of_first(void)
{
    double all = 0;
    for (size_t i = 0; i < sum.n_first; i++) all += (double)sum.first[i];
    return sum.n_first ? all / (double)sum.n_first : 0;
}

static void print(double seconds)
{
    double busy = 0, most_busy = 0, saving = 0, nic = 0, most_nic = 0, ssd = 0, most_ssd = 0;
    uint64_t read = 0, written = 0, in = 0, out = 0, evicted = 0, dropped = 0, stored = 0, most_requests = 0,
             saves = 0, cut = 0;
    for (uint32_t i = 0; i < n_servers; i++) {
        const server *s = &servers[i];
        busy += s->busy;
        most_busy = fmax(most_busy, s->busy);
        saving += s->busy_saving;
        nic += s->nic_busy;
        most_nic = fmax(most_nic, s->nic_busy);
        ssd += s->ssd_busy;
        most_ssd = fmax(most_ssd, s->ssd_busy);
        read += s->ssd_read;
        written += s->ssd_written;
        in += s->net_in;
        out += s->net_out;
        saves += s->saves;
        cut += s->saves_cut;
        most_requests = s->requests > most_requests ? s->requests : most_requests;
        evicted += quire_counted(&s->counters.evicted);
        dropped += quire_counted(&s->counters.dropped[QUIRE_DISK]);
        stored += s->disk ? shelf_bytes(s->disk) : 0;
    }
    qsort(sum.first, sum.n_first, sizeof *sum.first, compare);
    double n = n_servers, tokens = (double)sum.tokens;
    printf("{");
#define SETTING_PRINT(name, value) printf("\"%s\":%.10g,", #name, set.name);
    SETTINGS(SETTING_PRINT)
#undef SETTING_PRINT
    printf("\"requests\":%llu,\"prompt_tokens\":%llu,\"prompt_pages\":%llu,\"seconds\":%.1f,",
           (unsigned long long)sum.requests, (unsigned long long)sum.tokens, (unsigned long long)sum.pages,
           seconds);
    printf("\"ideal_tokens\":%llu,\"reused_tokens\":%llu,\"hit_percent\":%.3f,\"ideal_percent\":%.3f,",
           (unsigned long long)sum.ideal, (unsigned long long)sum.reused, 100 * (double)sum.reused / tokens,
           100 * (double)sum.ideal / tokens);
    printf(
        "\"pages_from_slot\":%llu,\"pages_from_cache\":%llu,\"pages_from_ssd\":%llu,\"pages_from_remote\":%llu,",
        (unsigned long long)sum.from[IN_SLOT], (unsigned long long)sum.from[IN_CACHE],
        (unsigned long long)sum.from[ON_SSD], (unsigned long long)sum.from[IN_REMOTE]);
    printf("\"ssd_read_bytes\":%llu,\"ssd_written_bytes\":%llu,\"net_in_bytes\":%llu,\"net_out_bytes\":%llu,",
           (unsigned long long)read, (unsigned long long)written, (unsigned long long)in,
           (unsigned long long)out);
    printf(
        "\"ssd_stored_bytes\":%llu,\"evicted\":%llu,\"dropped\":%llu,\"remote_most_bytes\":%llu,\"remote_evicted\":%llu,",
        (unsigned long long)stored, (unsigned long long)evicted, (unsigned long long)dropped,
        (unsigned long long)far.most, (unsigned long long)far.n_evicted);
    printf(
        "\"saves\":%llu,\"saves_cut\":%llu,\"first_median_s\":%.3f,\"first_p95_s\":%.3f,\"first_mean_s\":%.3f,",
        (unsigned long long)saves, (unsigned long long)cut, part_of_first(0.5), part_of_first(0.95),
        mean_of_first());
    printf("\"busy\":%.4f,\"busy_most\":%.4f,\"busy_saving\":%.4f,\"requests_most\":%.3f,",
           busy / n / seconds, most_busy / seconds, saving / n / seconds,
           sum.requests ? (double)most_requests * n / (double)sum.requests : 0);
    printf(
        "\"nic_busy\":%.4f,\"nic_busy_most\":%.4f,\"ssd_busy\":%.4f,\"ssd_busy_most\":%.4f,\"remote_busy\":%.4f",
        nic / n / seconds, most_nic / seconds, ssd / n / seconds, most_ssd / seconds, far.busy / seconds);
    if (set.trace)
        printf(",\"told_tokens\":%llu,\"told_percent\":%.3f,\"same_server\":%llu",
               (unsigned long long)sum.told, 100 * (double)sum.told / tokens,
               (unsigned long long)sum.same_server);
    printf("}\n");
}

/* ---------------------------------------------------------------------- run */

static void enqueue(server *s, request *r)
{
    if (s->at_queue + s->n_queue == s->cap_queue) {
        if (s->at_queue) memmove(s->queue, s->queue + s->at_queue, sizeof(request *) * s->n_queue);
        s->at_queue = 0;
        if (s->n_queue == s->cap_queue) {
            s->cap_queue = s->cap_queue ? 2 * s->cap_queue : 16;
            s->queue = (request **)realloc((void *)s->queue, sizeof(request *) * s->cap_queue);
            if (!s->queue) abort();
        }
    }
    s->queue[s->at_queue + s->n_queue++] = r;
}

static void start_waiting(uint32_t i, double now)
{
    server *s = &servers[i];
    while (s->n_queue && slots_busy(s->slots) < (uint32_t)set.slots) {
        request *r = s->queue[s->at_queue++];
        s->n_queue--;
        r->loaded = server_load(s, &far, r, now);
        at(r->loaded, LOADED, i, r);
    }
}

static void plan_save(uint32_t i, double t)
{
    server *s = &servers[i];
    if (s->save_due > 0 && s->save_due <= t) return;
    s->save_due = t;
    at(t, SAVE, i, NULL);
}

static void send(request *r, double now)
{
    r->server = choose(r);
    servers[r->server].in_flight++;
    in_flight++;
    enqueue(&servers[r->server], r);
    start_waiting(r->server, now);
}

/* Its requests go to others; what it held in slots and on its disk is gone. */
static void kill_last(double now)
{
    server *s = &servers[n_servers - 1];
    s->is_dead = true;
    n_alive--;
    in_flight -= s->in_flight;
    for (; s->n_queue; s->n_queue--) send(s->queue[s->at_queue++], now);
}

static void answered(uint32_t i, request *r, double now)
{
    server *s = &servers[i];
    double due;
    s->in_flight--;
    in_flight--;
    if (counting) s->requests++;
    if (counting) count_request(r, s);
    server_answered(s, &far, r, now);
    session *more = sessions_next(r, now, &due);
    if (more && due < 3600 * set.hours) at(due, ASK, 0, more);
    start_waiting(i, now);
    plan_save(i, now + 0.1);
}

static void run_event(const event *e)
{
    server *s = &servers[e->server];
    request *r = (request *)e->what;
    if (s->is_dead && (e->kind == LOADED || e->kind == FIRST || e->kind == ANSWERED)) {
        r->warm = 0; /* the client asks again */
        memset(r->from, 0, sizeof r->from);
        send(r, e->t);
        return;
    }
    switch (e->kind) {
    case BEGIN:
    case ASK: send(session_ask((session *)e->what, e->t), e->t); break;
    case LOADED:
        r->first = server_compute(s, r, e->t);
        at(r->first, FIRST, e->server, r);
        break;
    case FIRST: at(e->t + r->answer * set.answer_token_s, ANSWERED, e->server, r); break;
    case ANSWERED: answered(e->server, r, e->t); break;
    case SAVE:
        if (e->t < s->save_due || s->is_dead) break; /* an earlier plan */
        s->save_due = 0;
        double again = server_save(s, &far, e->t);
        if (again > 0) plan_save(e->server, again);
        start_waiting(e->server, e->t);
        break;
    case KILL: kill_last(e->t); break;
    }
}

static void begin_session(session *s, double t)
{
    at(t, BEGIN, 0, s);
}

static bool read_setting(const char *text)
{
    size_t n = strcspn(text, "=");
    if (text[n] != '=') return false;
#define SETTING_READ(name, value)                        \
    if (strlen(#name) == n && !memcmp(text, #name, n)) { \
        char *end;                                       \
        set.name = strtod(text + n + 1, &end);           \
        return end != text + n + 1 && !*end;             \
    }
    SETTINGS(SETTING_READ)
#undef SETTING_READ
    if (!strncmp(text, "sessions=", 9)) set.sessions = text + 9;
    if (!strncmp(text, "trace=", 6)) set.trace = text + 6;
    return !strncmp(text, "sessions=", 9) || !strncmp(text, "trace=", 6);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!read_setting(argv[i])) {
            fprintf(stderr, "quire_fleet: unknown setting %s\n", argv[i]);
            return 2;
        }
    if ((!set.sessions && !set.trace) || set.servers < 1 || set.slots < 1 || set.grain < 1) {
        fprintf(stderr, "usage: quire_fleet sessions=FILE|trace=FILE [NAME=VALUE...]\n");
        return 2;
    }
    if (set.trace) set.warmup_hours = 0;
    n_servers = n_alive = (uint32_t)set.servers;
    servers = (server *)calloc(n_servers, sizeof *servers);
    if (!servers) return 1;
    far.cap = (uint64_t)(set.remote_gb * 1e9);
    sessions_begin();
    for (uint32_t i = 0; i < n_servers; i++) server_begin(&servers[i]);
    sessions_each_first(begin_session);
    if (set.kill_at_s > 0) at(set.kill_at_s, KILL, 0, NULL);
    double now = 0, until = 3600 * set.hours;
    while (n_heap) {
        event e = next();
        if (e.t > until && !set.trace) break;
        now = e.t;
        shelf_set_clock(1 + (uint64_t)(now * 1e6));
        counting = now >= 3600 * set.warmup_hours;
        run_event(&e);
    }
    print(set.trace ? now : until - 3600 * set.warmup_hours);
    for (uint32_t i = 0; i < n_servers; i++) server_end(&servers[i]);
    return 0;
}
