/* SPDX-License-Identifier: MIT */
/*
 * One small model of one architecture of llama.cpp, with and without the device. scripts/get-llama-tests compiles it;
 * tests/llama/archs.py runs it.
 *
 *   matrix --list                        every configuration: its name and whether llama.cpp's own test supports it
 *   matrix --header DIR                  the metadata of every model as NAME.gguf, without weights
 *   matrix --save DIR NAME               a whole model file, for llama.cpp's other tests
 *   matrix NAME TYPE_K TYPE_V            decodes fixed tokens on the CPU and twice on the device, and compares
 *
 * Each prints lines of JSON. A name is ARCHITECTURE-dense or ARCHITECTURE-moe. The models are those of llama.cpp's
 * tests/test-llama-archs.cpp, which is included whole: its functions are static, and nothing of it is copied here.
 */
#define main host_main
#include "test-llama-archs.cpp"
#undef main

#include "quire_stat.h"

#include <map>
#include <set>
#include <unistd.h>

static const size_t SEED = 1;
static const float DEVIATION = 0.1f;
/* More cells than a window of 32 tokens and a batch need, so that window layers get a smaller cache. */
static const uint32_t CONTEXT = 1024;
static const size_t N_TOKENS = 128;

/* ------------------------------------------------------------ configurations */

struct config {
    llm_arch arch;
    bool moe;
    std::string name;
    std::string left_out; /* why llama.cpp's test does not run it; empty: it does */
};

/* In the words of docs/models.md. What llama.cpp's own test leaves out and is not named here: for no reason that it tells. */
static std::string why_left_out(llm_arch arch)
{
    switch (arch) {
    case LLM_ARCH_GEMMA4: return ""; /* complete_gemma4() */
    case LLM_ARCH_EAGLE3:
    case LLM_ARCH_DFLASH:
    case LLM_ARCH_GEMMA4_ASSISTANT: return "draft models, which need the context of another model";
    case LLM_ARCH_CLIP:
    case LLM_ARCH_GPTJ:
    case LLM_ARCH_CHAMELEON: return "llama.cpp does not implement them, or only in part";
    case LLM_ARCH_BERT:
    case LLM_ARCH_MODERN_BERT:
    case LLM_ARCH_NOMIC_BERT:
    case LLM_ARCH_NOMIC_BERT_MOE:
    case LLM_ARCH_NEO_BERT:
    case LLM_ARCH_JINA_BERT_V2:
    case LLM_ARCH_JINA_BERT_V3:
    case LLM_ARCH_EUROBERT:
    case LLM_ARCH_LLAMA_EMBED:
    case LLM_ARCH_GEMMA_EMBEDDING:
    case LLM_ARCH_T5ENCODER:
    case LLM_ARCH_WAVTOKENIZER_DEC:
        return "models that compute no next token; their attention uses no KV cache";
    case LLM_ARCH_RWKV6:
    case LLM_ARCH_RWKV6QWEN2:
    case LLM_ARCH_RWKV7:
    case LLM_ARCH_ARWKV7: return "recurrent models, which have no KV cache; llama.cpp's test hangs with them";
    default: return arch_supported(arch) ? "" : "llama.cpp's test has no small model of them";
    }
}

static std::vector<config> configs()
{
    std::vector<config> all;
    for (llm_arch arch : llm_arch_all()) {
        if (arch == LLM_ARCH_UNKNOWN) continue;
        for (bool moe : {false, true}) {
            if (moe ? !moe_implemented(arch) : moe_mandatory(arch)) continue;
            all.push_back({arch, moe, std::string(llm_arch_name(arch)) + (moe ? "-moe" : "-dense"),
                           why_left_out(arch)});
        }
    }
    return all;
}

/* What the host's test gives Gemma4 is not enough to load it: the pattern must be one flag for each layer. Here the last
 * two of five layers use the caches of others, as in Gemma4 e2b and e4b. */
static void complete_gemma4(gguf_context *g)
{
    const int32_t windows[] = {1, 1, 0, 1, 0};
    gguf_set_arr_data(g, "gemma4.attention.sliding_window_pattern", GGUF_TYPE_INT32, windows, 5);
    gguf_set_val_u32(g, "gemma4.attention.shared_kv_layers", 2);
}

static gguf_context_ptr metadata(const config &c)
{
    gguf_context_ptr g = get_gguf_ctx(c.arch, c.moe);
    if (c.arch == LLM_ARCH_GEMMA4) complete_gemma4(g.get());
    /* The host's test gives this key to all; files have it where it counts. */
    bool counts = c.arch == LLM_ARCH_QWEN3NEXT || c.arch == LLM_ARCH_QWEN35 || c.arch == LLM_ARCH_QWEN35MOE ||
                  c.arch == LLM_ARCH_QWEN4EXP || c.arch == LLM_ARCH_MINIMAX_01;
    if (!counts)
        gguf_remove_key(g.get(), (std::string(llm_arch_name(c.arch)) + ".full_attention_interval").c_str());
    if (c.arch == LLM_ARCH_BAILINGMOE3)
        gguf_remove_key(g.get(), "bailingmoe3.kda.safe_gate"); /* as the host's test */
    return g;
}

static bool is_encoded(llm_arch arch)
{
    return arch == LLM_ARCH_T5 || arch == LLM_ARCH_DREAM || arch == LLM_ARCH_LLADA ||
           arch == LLM_ARCH_LLADA_MOE || arch == LLM_ARCH_RND1;
}

/* -------------------------------------------------------------------- models */

static llama_model_ptr load(const config &c, ggml_backend_dev_t device)
{
    gguf_context_ptr g = metadata(c);
    ggml_backend_dev_t devices[] = {device, nullptr};
    llama_model_params params = llama_model_default_params();
    params.progress_callback = silent_model_load_progress;
    params.devices = devices;
    tensor_data_params data = {SEED, DEVIATION};
    return llama_model_ptr(llama_model_init_from_user(g.get(), set_tensor_data, &data, params));
}

static llama_context_ptr open_context(llama_model *model, ggml_type k, ggml_type v,
                                      ggml_backend_sched_eval_callback look, void *to)
{
    llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT;
    params.n_threads = params.n_threads_batch = 2;
    params.type_k = k;
    params.type_v = v;
    params.swa_full = false; /* as the programs do */
    params.cb_eval = look;
    params.cb_eval_user_data = to;
    return llama_context_ptr(llama_init_from_model(model, params));
}

/* A long batch, a short one, and single tokens: the sizes that attention treats differently. Empty: it failed. */
static std::vector<float> decode(llama_model *model, llama_context *context, bool encoded)
{
    static const size_t batches[] = {80, 40, 1, 1, 1, 1, 1, 1, 1, 1};
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const std::vector<llama_token> tokens = get_tokens(N_TOKENS, 128, SEED);
    std::vector<float> all;
    size_t at = 0;
    for (size_t n : batches) {
        llama_batch batch = llama_batch_init((int32_t)n, 0, 1);
        for (size_t i = 0; i < n; i++, at++) common_batch_add(batch, tokens[at], (llama_pos)at, {0}, true);
        bool right = (!encoded || !llama_encode(context, batch)) && !llama_decode(context, batch);
        llama_batch_free(batch);
        if (!right) return {};
        for (size_t i = 0; i < n; i++) {
            const float *logits = llama_get_logits_ith(context, (int32_t)i);
            all.insert(all.end(), logits, logits + n_vocab);
        }
    }
    return all;
}

/* -------------------------------------------------------------- what is seen */

/* The host's own account of its caches, in MiB with two digits; "llama_kv_cache: size = 2.00 MiB (...". */
static double host_mib;
static void hear(ggml_log_level level, const char *text, void *)
{
    double mib;
    if (sscanf(text, "llama_kv_cache: size = %lf MiB", &mib) == 1) host_mib += mib;
    if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) fputs(text, stderr);
}

struct seen_cache {
    std::string name, type;
    int64_t row, cells;
    size_t bytes;
    std::set<std::string> ops;
};
typedef std::map<const ggml_tensor *, seen_cache> seen_caches;

static bool see(ggml_tensor *node, bool, void *to)
{
    auto *seen = (seen_caches *)to;
    for (ggml_tensor *src : node->src) {
        if (!src) continue;
        const ggml_tensor *root = src->view_src ? src->view_src : src;
        bool is_state = !strncmp(root->name, "cache_r_", 8) || !strncmp(root->name, "cache_s_", 8) ||
                        !strncmp(root->name, "cache_ple_", 10);
        if (strncmp(root->name, "cache_", 6) || is_state || root->op != GGML_OP_NONE) continue;
        seen_cache &c = (*seen)[root];
        c = {root->name,        ggml_type_name(root->type),
             root->ne[0],       root->ne[1] * root->ne[2],
             ggml_nbytes(root), c.ops};
        bool moves = node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
                     node->op == GGML_OP_TRANSPOSE;
        if (!moves) c.ops.insert(ggml_op_name(node->op));
    }
    return false; /* nothing is wanted: the graph runs as it would */
}

/* The counters of this process. */
static bool read_stat(quire_stat *s)
{
    const char *folders[] = {getenv("XDG_RUNTIME_DIR"), "/dev/shm", "/tmp"};
    char path[512];
    for (const char *folder : folders) {
        if (!folder || !*folder) continue;
        snprintf(path, sizeof path, "%s/quire-stat.%u.%u", folder, (unsigned)getuid(), (unsigned)getpid());
        FILE *f = fopen(path, "rb");
        if (!f) continue;
        bool right =
            fread(s, 1, sizeof *s, f) == sizeof *s && !memcmp(s->magic, QUIRE_STAT_MAGIC, sizeof s->magic);
        fclose(f);
        if (right) return true;
    }
    return false;
}

/* Address space of the device's pages, which alone are left out of core dumps. */
static size_t reserved_bytes()
{
    size_t total = 0;
    unsigned long long begin = 0, end = 0, from, to;
    char line[512];
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) begin = from, end = to;
        if (!strncmp(line, "VmFlags:", 8) && strstr(line, " dd")) total += (size_t)(end - begin);
    }
    if (f) fclose(f);
    return total;
}

static void print_caches(const seen_caches &seen)
{
    const char *comma = "";
    printf(",\"host_mib\":%.2f,\"caches\":[", host_mib);
    for (const auto &entry : seen) {
        const seen_cache &c = entry.second;
        printf("%s{\"name\":\"%s\",\"type\":\"%s\",\"row\":%lld,\"cells\":%lld,\"bytes\":%zu,\"ops\":[",
               comma, c.name.c_str(), c.type.c_str(), (long long)c.row, (long long)c.cells, c.bytes);
        const char *inner = "";
        for (const std::string &op : c.ops) printf("%s\"%s\"", inner, op.c_str()), inner = ",";
        printf("]}");
        comma = ",";
    }
    printf("]");
}

static void print_stat(size_t reserved)
{
    quire_stat s;
    unsigned long long bytes = 0, f16_bytes = 0;
    if (!read_stat(&s)) memset(&s, 0, sizeof s);
    for (const quire_stat_policy &p : s.policies) bytes += p.bytes, f16_bytes += p.f16_bytes;
    printf(",\"attend\":%llu,\"tiles\":%llu,\"bytes\":%llu,\"f16_bytes\":%llu,\"reserved\":%zu",
           (unsigned long long)s.n_attend, (unsigned long long)s.tiles_read, bytes, f16_bytes, reserved);
}

/* ----------------------------------------------------------------------- run */

static int end(const char *status)
{
    printf(",\"status\":\"%s\"}\n", status);
    return 0;
}

static bool all_finite(const std::vector<float> &values)
{
    for (float v : values)
        if (!std::isfinite(v)) return false;
    return true;
}

static int compare(const config &c, ggml_type k, ggml_type v)
{
    bool encoded = is_encoded(c.arch);
    seen_caches seen;
    printf("{\"name\":\"%s\"", c.name.c_str());
    llama_model_ptr stock = load(c, nullptr);
    llama_context_ptr context = stock ? open_context(stock.get(), k, v, see, &seen) : nullptr;
    if (!context) return end("refused"); /* by the host, without the device */
    const std::vector<float> expected = decode(stock.get(), context.get(), encoded);
    if (expected.empty()) return end("stock-failed");
    print_caches(seen);
    context.reset();
    stock.reset();

    ggml_backend_dev_t device = ggml_backend_dev_by_name("QUIRE0");
    llama_model_ptr model = device ? load(c, device) : nullptr;
    const size_t before = reserved_bytes();
    std::vector<float> found[2];
    llama_context_ptr contexts[2]; /* the second one while the first one is there */
    for (int i = 0; i < 2; i++) {
        contexts[i] = model ? open_context(model.get(), k, v, nullptr, nullptr) : nullptr;
        if (!contexts[i]) return end(device ? "no-context" : "no-device");
        found[i] = decode(model.get(), contexts[i].get(), encoded);
        if (found[i].empty()) return end("decode-failed");
        if (!i) print_stat(reserved_bytes() - before);
    }
    if (!all_finite(expected)) return end("stock-not-finite");
    if (!all_finite(found[0])) return end("not-finite");
    printf(",\"nmse\":%.3e,\"same\":%s", nmse(expected, found[0]), found[0] == found[1] ? "true" : "false");
    return end("ran");
}

/* --------------------------------------------------------------------- files */

static int list_all()
{
    for (const config &c : configs())
        printf("{\"name\":\"%s\",\"arch\":\"%s\",\"left_out\":\"%s\"}\n", c.name.c_str(),
               llm_arch_name(c.arch), c.left_out.c_str());
    return 0;
}

static int write_headers(const std::string &folder)
{
    for (const config &c : configs()) {
        if (!c.left_out.empty()) continue;
        gguf_context_ptr g = metadata(c);
        if (!gguf_write_to_file(g.get(), (folder + "/" + c.name + ".gguf").c_str(), true)) return 1;
    }
    return 0;
}

static int save(const config &c, const std::string &folder)
{
    if (!llama_model_saver_supports_arch(c.arch)) {
        printf("{\"name\":\"%s\",\"status\":\"llama.cpp cannot write this architecture\"}\n", c.name.c_str());
        return 0;
    }
    llama_model_ptr model = load(c, nullptr);
    if (!model) return 1;
    llama_model_save_to_file(model.get(), (folder + "/" + c.name + ".gguf").c_str());
    return 0;
}

static ggml_type type_of(const char *name)
{
    for (int i = 0; i < GGML_TYPE_COUNT; i++)
        if (ggml_type_name((ggml_type)i) && !strcmp(ggml_type_name((ggml_type)i), name)) return (ggml_type)i;
    return GGML_TYPE_COUNT;
}

int main(int argc, char **argv)
{
    std::string first = argc > 1 ? argv[1] : "", second = argc > 2 ? argv[2] : "";
    llama_log_set(hear, nullptr);
    ggml_backend_load_all(); /* the CPU's beside this program, and the device of GGML_BACKEND_PATH */
    if (argc == 2 && first == "--list") return list_all();
    if (argc == 3 && first == "--header") return write_headers(second);
    bool saves = argc == 4 && first == "--save";
    for (const config &c : configs()) {
        if (saves && c.name == argv[3]) return save(c, second);
        if (argc == 4 && !saves && c.name == first && type_of(argv[2]) != GGML_TYPE_COUNT &&
            type_of(argv[3]) != GGML_TYPE_COUNT)
            return compare(c, type_of(argv[2]), type_of(argv[3]));
    }
    fprintf(stderr, "usage: matrix --list | --header DIR | --save DIR NAME | NAME TYPE_K TYPE_V\n");
    return 2;
}
