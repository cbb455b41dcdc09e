/* load: a model made ready, and a generation run on it: what serve, chat, generate and bench share. */
#ifndef IG_APP_LOAD_H
#define IG_APP_LOAD_H

#include "app/app.h"
#include "engine/engine.h"
#include "text/text.h"
#include "tier/tier.h"

#include <signal.h>

/* ---- models.c: which file --------------------------------------------------------------------------- */

#define IG_STARTER_FILE "SmolLM2-135M-Instruct.Q4_1.gguf" /* what ./run fetches */

/* The path of a .gguf file or of a snapshot's folder, from: such a path; that of a snapshot's config.json or
 * model.safetensors; org/name or org/name:Q4_K_M, looked for in the hub's cache (on a terminal a download is
 * offered); words that all occur in a name that `ingle ls` shows, in any case; or NULL: the only model of the
 * models folder, else the starter, else the only one of the cache. *path is malloc'd. Says why otherwise. */
int ig_models_find(char **path, const char *arg);
/* What /v1/models shows: the file's name without .gguf, the folder's name, or org/name in a hub cache. */
void ig_models_name(char *out, size_t cap, const char *path);
/* $INGLE_CACHE, else $XDG_CACHE_HOME/ingle, else ~/.cache/ingle. malloc'd; NULL: no HOME, or no memory. */
char *ig_models_cache_dir(void);
/* Could `arg` be a model: is it a path or a name of a GGUF file, or part of a name on this machine? */
bool ig_models_knows(const char *arg);
/* The name of a GGUF file in the folder, the first of them; false: there is none. */
bool ig_models_gguf_in(char *out, size_t cap, const char *folder);

/* ---- load.c ----------------------------------------------------------------------------------------- */

typedef struct ig_load_options {
    const char *model;      /* as ig_models_find takes it */
    int n_threads;          /* 0: ig_cpu_count() */
    ig_engine_config engine; /* n_ctx, n_slots, budgets, chunk */
    int kv_bits;            /* of keys and values: 16 or 8 */
    int act_bits;           /* of what the weights' codes are multiplied with: 8 or 16 */
    ig_option_one tier;     /* the worst of kernels that may run: an ig_tier */
    const char *kv_config;  /* --l2: a file instead of the snapshot's own kv_config.json; NULL: that one, if there is one */
    const char *chat_template; /* a file instead of the model's own; NULL: that one */
    bool text_only;         /* tokenizer and template, no weights and no engine */
    bool no_engine;         /* weights but no engine thread: the caller drives the model itself */
    bool plan_only;         /* no weight is read, nothing can run; with no_engine */
    bool vectors;           /* a model without a head will do */
    bool quiet;             /* no progress on a terminal */
} ig_load_options;

static inline ig_load_options ig_load_defaults(void) {
    return (ig_load_options){.engine = ig_engine_defaults(), .kv_bits = 16, .act_bits = 8,
                             .tier = {.v = IG_TIER_L3}};
}
static inline ig_kv_kind ig_load_kv_kind(const ig_load_options *o) {
    return o->kv_bits == 8 ? IG_KV_8 : IG_KV_F16;
}

static inline ig_tier ig_load_tier(const ig_load_options *o) {
    return (ig_tier)o->tier.v;
}
/* Options that a tier excludes: said, with the reason. */
int ig_load_check_numbers(const ig_load_options *o);

/* The kv_config that counts for the model at `path`; *out has no layers when none does. */
ig_status ig_load_kv_config(ig_kv_config *out, const ig_load_options *o, const char *path, ig_err *err);

/* What changes the bits of results. */
#define IG_NUMBERS_OPTIONS(o)                                                                               \
    {"l1", .other = "exact", .kind = IG_OPT_ONE, .to = &(o).tier, .min = IG_TIER_L1, .numbers = true,       \
     .help = ig_tier_promise(IG_TIER_L1)},                                                                  \
    {"l2", .kind = IG_OPT_ONE, .to = &(o).tier, .min = IG_TIER_L2, .numbers = true,                         \
     .help = ig_tier_promise(IG_TIER_L2)},                                                                  \
    {"l3", .kind = IG_OPT_ONE, .to = &(o).tier, .min = IG_TIER_L3, .numbers = true,                         \
     .help = ig_tier_promise(IG_TIER_L3)},                                                                  \
    {"kv-config", .kind = IG_OPT_TEXT, .to = &(o).kv_config, .value = "FILE", .numbers = true,              \
     .help = "of --l2: layers that keep keys and values in groups, as mlx-optiq has it; twice the memory"}, \
    {"kv-bits", .kind = IG_OPT_INT, .to = &(o).kv_bits, .min = 8, .max = 16, .step = 8, .value = "N",       \
     .numbers = true,                                                                                       \
     .help = "keys and values in 16 bits, or 8: little more than half the memory"},              \
    {"act-bits", .kind = IG_OPT_INT, .to = &(o).act_bits, .min = 8, .max = 16, .step = 8, .value = "N",     \
     .numbers = true,                                                                                       \
     .help = "activations in 8 bits, or 16: nearer to the file's exact model, prompts at 0.6 of the speed"}

#define IG_MEMORY_OPTION(o)                                                                                 \
    {"memory-budget", .kind = IG_OPT_SIZE, .to = &(o).engine.memory_budget_bytes, .min = 0, .max = 1e18,    \
     .bare = 1e9, .value = "SIZE",                                                                          \
     .help = "memory to plan with, as 4G or 512Mi; 4 is 4G (0: 75 % of what is free)"}

/* The rows of an option table that every verb with a model shares. `o` is an ig_load_options. */
#define IG_LOAD_OPTIONS(o)                                                                                  \
    {"threads", .kind = IG_OPT_INT, .to = &(o).n_threads, .min = 0, .max = 1024, .value = "N",              \
     .help = "compute threads (0: all cores of this process)"},                                             \
    {"ctx", .other = "context", .kind = IG_OPT_INT, .to = &(o).engine.n_ctx, .min = 0, .max = 1 << 24,      \
     .value = "N", .help = "tokens of one conversation (0: the model's)"},                                  \
    IG_MEMORY_OPTION(o),                                                                                    \
    {"kv-budget", .kind = IG_OPT_SIZE, .to = &(o).engine.kv_budget_bytes, .min = 0, .max = 1e18,            \
     .value = "SIZE", .help = "memory for keys and values (0: chosen from what is free)"},                  \
    IG_NUMBERS_OPTIONS(o)

#define IG_TEMPLATE_OPTION(o)                                                                               \
    {"chat-template", .kind = IG_OPT_TEXT, .to = &(o).chat_template, .value = "FILE",                       \
     .help = "a Jinja chat template, instead of the model's own"}

/* The defaults of a generation, and the rows that change them. `s` is an ig_sampling, `biases` an ig_biases,
 * `seeded` a bool. */
#define IG_SAMPLING_OPTIONS(s, biases, seeded)                                                              \
    {"temperature", .other = "temp", .kind = IG_OPT_REAL, .to = &(s).temperature, .min = 0, .max = 5,       \
     .value = "X", .help = "0 always takes the likeliest token"},                                           \
    {"top-p", .kind = IG_OPT_REAL, .to = &(s).top_p, .min = 0, .max = 1, .value = "P",                      \
     .help = "keep the likeliest tokens that hold this much (0 or 1: all)"},                                \
    {"top-k", .kind = IG_OPT_INT, .to = &(s).top_k, .min = 0, .max = 1 << 24, .value = "K",                 \
     .help = "keep the K likeliest tokens (0: all)"},                                                       \
    {"min-p", .kind = IG_OPT_REAL, .to = &(s).min_p, .min = 0, .max = 1, .value = "P",                      \
     .help = "drop tokens less likely than P times the likeliest (0: none)"},                               \
    {"min-tokens-to-keep", .kind = IG_OPT_INT, .to = &(s).min_tokens_to_keep, .min = 0, .max = 1 << 24,     \
     .value = "N", .help = "the N likeliest tokens that --min-p must leave"},                               \
    {"xtc-probability", .kind = IG_OPT_REAL, .to = &(s).xtc_probability, .min = 0, .max = 1, .value = "P",  \
     .help = "how often, of tokens above --xtc-threshold, only the least likely is kept"},                  \
    {"xtc-threshold", .kind = IG_OPT_REAL, .to = &(s).xtc_threshold, .min = 0, .max = 0.5, .value = "P",    \
     .help = "the likelihood above which --xtc-probability acts"},                                          \
    {"repetition-penalty", .kind = IG_OPT_REAL, .to = &(s).repetition_penalty, .min = 0, .max = 100,        \
     .value = "X", .help = "divide the logits of tokens that were there already by this (0 or 1: not)"},    \
    {"repetition-context-size", .kind = IG_OPT_INT, .to = &(s).repetition_context_size, .min = 0,           \
     .max = 1 << 24, .value = "N", .help = "it looks at the last N tokens, prompt and answer (0: all)"},             \
    {"presence-penalty", .kind = IG_OPT_REAL, .to = &(s).presence_penalty, .min = -2, .max = 2,             \
     .value = "X", .help = "take this from the logits of tokens that were there already"},                  \
    {"presence-context-size", .kind = IG_OPT_INT, .to = &(s).presence_context_size, .min = 0,               \
     .max = 1 << 24, .value = "N", .help = "it looks at the last N tokens (0: all)"},                                \
    {"frequency-penalty", .kind = IG_OPT_REAL, .to = &(s).frequency_penalty, .min = -2, .max = 2,           \
     .value = "X", .help = "take this from the logits of tokens, as often as they were there"},                                               \
    {"frequency-context-size", .kind = IG_OPT_INT, .to = &(s).frequency_context_size, .min = 0,             \
     .max = 1 << 24, .value = "N", .help = "it looks at the last N tokens (0: all)"},                                \
    {"logit-bias", .kind = IG_OPT_LIST, .to = &(biases).text, .value = "ID=X",                              \
     .help = "add X, -100 to 100, to the logit of token ID; repeatable"},                                   \
    {"seed", .kind = IG_OPT_U64, .to = &(s).seed, .value = "N", .given = &(seeded),                         \
     .help = "the same seed gives the same text (default: a fresh one)"}

/* What --logit-bias said, and as what it goes into an ig_sampling, which points here. */
typedef struct ig_biases {
    ig_option_list text;
    ig_token_bias v[IG_OPTION_LIST_MAX];
} ig_biases;

/* After the options: reads the biases. Says what is wrong; gives the exit code. */
int ig_biases_read(ig_biases *b, ig_sampling *s);

typedef struct ig_loaded {
    char *path;
    char name[128];            /* as ig_models_name gives it */
    int64_t modified_s;        /* mtime of the file or folder */
    ig_gguf *gguf;             /* one of the two */
    ig_snapshot *snapshot;
    ig_tokenizer *tokenizer;
    ig_template *chat;         /* NULL: see chat_err */
    ig_err chat_err;           /* why there is no chat template */
    bool no_template;          /* then: the model has none, so it just completes text */
    ig_pool *pool;
    ig_model *model;           /* NULL when text_only */
    ig_engine *engine;         /* NULL when text_only or no_engine */
    ig_engine_plan plan;
    ig_pooling pooling;        /* of vectors that the engine gives */
    ig_tier tier, tier_sampled; /* of answers at temperature 0, and above; nodes.h */
    int n_threads;
    uint64_t load_ns;          /* all of it: the two that follow run side by side */
    uint64_t weights_ns, text_ns; /* reading and packing the weights; tokenizer and template */
} ig_loaded;

/* A GGUF file, or a folder as a snapshot: one of the two outputs is set. */
ig_status ig_load_files(ig_gguf **gguf, ig_snapshot **snapshot, const char *path, ig_err *err);
/* IG_EFORMAT: tokenizer and embedding are not of one model. */
ig_status ig_load_check_vocabulary(const ig_tokenizer *t, const ig_model *m, const char *path, bool folder,
                                   ig_err *err);
int ig_load(ig_loaded *out, const ig_load_options *o);
/* The engine's plan; an error of memory says which options would help. */
ig_status ig_load_plan(ig_engine_plan *out, const ig_model *m, const ig_load_options *o, ig_err *err);
/* Prints a document of ig_json_doc_make on stdout, and frees it. Gives the exit code. */
int ig_app_print_json(yyjson_mut_doc *doc, bool lost);
/* Are the biases for tokens of this model? Says so if not; gives the exit code. */
int ig_biases_check(const ig_sampling *s, const ig_loaded *l);
void ig_unload(ig_loaded *l); /* stops the engine first; a zeroed one is fine */

/* ---- stream.c: messages to tokens, a generation to text ----------------------------------------------- */

typedef struct ig_message {
    const char *role; /* "system", "user", "assistant" */
    ig_slice content; /* valid UTF-8 */
} ig_message;

/* The prompt of a chat, with the opening of the assistant's turn. IG_EFORMAT without a template. */
ig_status ig_messages_encode(const ig_loaded *l, const ig_message *v, int n, ig_tokens *out, ig_err *err);
/* The same as text, for people. */
ig_status ig_messages_render(const ig_loaded *l, const ig_message *v, int n, ig_buf *out, ig_err *err);
/* Plain text, BOS as the file says. */
ig_status ig_text_encode(const ig_loaded *l, ig_slice text, ig_tokens *out, ig_err *err);

typedef struct ig_stream {
    const uint32_t *prompt;
    int n_prompt;
    int max_tokens;              /* 0: what the context leaves */
    ig_sampling sampling;
    const ig_slice *stops;
    int n_stops;
    /* Whole characters, as soon as they can no longer be part of a stop string. False ends the run. */
    bool (*text)(void *ud, ig_slice text);
    void *ud;
    const volatile sig_atomic_t *interrupted; /* non-zero ends the run within 50 ms; or NULL */
} ig_stream;

typedef struct ig_stream_result {
    ig_finish finish;            /* IG_FINISH_STOP also for a stop string */
    int stop;                    /* which stop string matched, -1 none */
    ig_gen_stats stats;
    uint64_t total_ns;
} ig_stream_result;

/* Runs one generation to its end on the caller's thread. A generation that failed is IG_EIO with the
 * engine's reason; one that was interrupted is IG_OK with IG_FINISH_CANCELED. */
ig_status ig_stream_run(const ig_loaded *l, const ig_stream *s, ig_stream_result *out, ig_err *err);
/* Nothing is cut off silently: on stderr, after IG_FINISH_LENGTH. */
void ig_stream_say_cut(const ig_loaded *l, int max_tokens, const ig_stream_result *r);

#endif
