/* load: opens a model and everything that stands around it.
 * Owns:    what is in ig_loaded, until ig_unload.
 * Threads: the caller's reads and repacks the weights (with the pool); a second one meanwhile builds the
 *          tokenizer and compiles the template, which takes about as long: ready means both.
 * Memory:  refused before a weight is read when the weights alone do not fit, and before the engine
 *          starts when the plan does not. */
#include "app/load.h"
#include "app/nodes.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TEMPLATE_BYTES_MAX = 4 << 20,
    SPARE_IDS_MAX = 1024,
    PROGRESS_AFTER_MS = 400,
    PROGRESS_EVERY_MS = 100,
    NS_PER_MS = 1000000,
    BIAS_MAX = 100 /* as in the HTTP interface */
};

/* ---- progress ------------------------------------------------------------------------------------------ */

typedef struct progress {
    uint64_t started_ns;
    _Atomic uint64_t shown_ns; /* of the last line; pool threads race for who shows the next */
    const char *name;
} progress;

static void show_progress(void *ud, uint64_t done, uint64_t total) {
    progress *p = ud;
    uint64_t now = ig_clock_ns(), last = atomic_load(&p->shown_ns);
    if (now - p->started_ns < (uint64_t)PROGRESS_AFTER_MS * NS_PER_MS) return;
    if (last && now - last < (uint64_t)PROGRESS_EVERY_MS * NS_PER_MS) return;
    if (!atomic_compare_exchange_strong(&p->shown_ns, &last, now)) return;
    fprintf(stderr, "\rloading %.60s  %3d %% of %s ", p->name,
            total ? (int)(100 * (double)done / (double)total) : 0, ig_size_text_of(total).s);
}

static void end_progress(progress *p) {
    if (atomic_load(&p->shown_ns)) fprintf(stderr, "\r\33[K");
}

/* ---- tokenizer and template ---------------------------------------------------------------------------- */

typedef struct text_job {
    const ig_gguf *gguf; /* one of the two */
    const ig_snapshot *snapshot;
    const char *template_path; /* or NULL */
    ig_tokenizer *tokenizer;
    ig_template *chat;
    ig_status st; /* of the tokenizer; a missing or broken template only matters to those who chat */
    ig_err err, chat_err;
    bool no_template;
    uint64_t ns;
} text_job;

/* Its source: the file that was asked for, else the model's own of that name. malloc'd. */
static ig_status template_source(const text_job *j, const char *name, char **out, size_t *n, ig_err *err) {
    ig_slice own;
    char key[64] = "tokenizer.chat_template";
    if (j->template_path) {
        ig_err why;
        ig_status st = ig_file_slurp(out, n, j->template_path, TEMPLATE_BYTES_MAX, &why);
        if (st == IG_ELIMIT) st = IG_EFORMAT; /* a file that is no template */
        if (!st && *n == 0) st = ig_fail(&why, IG_EFORMAT, "%s: the file is empty", j->template_path);
        return st ? ig_fail(err, st, "--chat-template %s", why.msg) : IG_OK;
    }
    if (j->snapshot) return ig_template_source_from_snapshot(out, n, j->snapshot, name, err);
    if (strcmp(name, "default") != 0) snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
    ig_status st = ig_gguf_get_string(j->gguf, key, &own, err);
    if (st) return st;
    *out = malloc(own.n + 1);
    if (!*out) return ig_fail(err, IG_ELIMIT, "no memory for the chat template");
    memcpy(*out, own.p, own.n);
    *n = own.n;
    return IG_OK;
}

static ig_status make_template(ig_template **out, const text_job *j, const char *name, ig_err *err) {
    char *source = NULL;
    size_t n = 0;
    ig_status st = template_source(j, name, &source, &n, err);
    if (!st) st = ig_template_make(out, (ig_slice){source, n}, err);
    free(source);
    return st;
}

/* The model's templates, or the one that was asked for, which must show what a user says. */
static ig_status load_template(text_job *j) {
    ig_template *for_tools = NULL;
    bool shows = true;
    ig_status st = make_template(&j->chat, j, "default", &j->chat_err);
    if (st || j->st) return st;
    if (!j->template_path) {
        st = make_template(&for_tools, j, "tool_use", &j->chat_err);
        if (!st) ig_template_set_for_tools(j->chat, for_tools);
        if (st == IG_ENOTFOUND) st = IG_OK;
    }
    if (!st) {
        st = ig_chat_probe(j->chat, j->tokenizer, &shows, &j->chat_err);
        if (!shows && st != IG_ELIMIT && !(st && j->template_path))
            ig_log(IG_LOG_WARN, "chat_template.probe a message comes out without its text");
        if (!j->template_path && st != IG_ELIMIT)
            st = IG_OK; /* the model's own: those who do not chat need not care */
    }
    if (st) ig_template_free(j->chat);
    if (st) j->chat = NULL;
    return st;
}

static void *load_text(void *arg) {
    text_job *j = arg;
    const uint64_t since_ns = ig_clock_ns();
    if (j->snapshot) j->st = ig_tokenizer_from_snapshot(&j->tokenizer, j->snapshot, &j->err);
    else j->st = ig_tokenizer_from_gguf(&j->tokenizer, j->gguf, &j->err);
    ig_status st = load_template(j);
    if (st && j->template_path && !j->st) { /* it was asked for: no going on without it */
        j->err = j->chat_err;
        j->st = st;
    } else if (st == IG_ENOTFOUND) { /* the model is there, and it does not chat */
        j->no_template = true;
        ig_fail(
            &j->chat_err, IG_EFORMAT,
            "%.200s has no chat template: give one with --chat-template FILE, or let it go on with a text "
            "(generate --raw, /v1/completions)",
            j->snapshot ? ig_snapshot_path(j->snapshot) : ig_gguf_path(j->gguf));
    }
    j->ns = ig_clock_ns() - since_ns;
    return NULL;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

ig_status ig_load_kv_config(ig_kv_config *out, const ig_load_options *o, const char *path, ig_err *err) {
    char own[PATH_MAX];
    *out = (ig_kv_config){.n_layers = 0};
    if (ig_load_tier(o) != IG_TIER_L2) return IG_OK;
    if (o->kv_config) return ig_kv_config_read(out, o->kv_config, err);
    const int n = snprintf(own, sizeof own, "%s/kv_config.json", path);
    if (n < 0 || (size_t)n >= sizeof own || access(own, F_OK) != 0) return IG_OK; /* a GGUF file is no folder */
    return ig_kv_config_read(out, own, err);
}

static ig_status load_model(ig_loaded *l, const ig_load_options *o, ig_err *err) {
    ig_kv_config kv_config;
    progress p = {.started_ns = ig_clock_ns(), .name = l->name};
    bool show = !o->quiet && isatty(STDERR_FILENO);
    ig_status st = ig_pool_make(&l->pool, l->n_threads, err);
    if (st) return st;
    uint64_t budget = o->engine.memory_budget_bytes;
    if (!budget) budget = ig_memory_available_bytes() / 4 * 3;
    if ((st = ig_load_kv_config(&kv_config, o, l->path, err))) return st;
    const ig_model_options mo = {.pool = l->pool,
                                 .tier_max = ig_load_tier(o),
                                 .kv_config = &kv_config,
                                 .kv_kind = ig_load_kv_kind(o),
                                 .two_parts = o->act_bits == 16,
                                 .memory_budget_bytes = o->plan_only ? 0 : budget,
                                 .plan_only = o->plan_only,
                                 .progress = show ? show_progress : NULL,
                                 .progress_ud = &p};
    st = ig_model_open(&l->model, (ig_checkpoint){l->gguf, l->snapshot}, &mo, err);
    end_progress(&p);
    return st;
}

/* The tier that a plan has is told with every answer. */
static void note_tiers(ig_loaded *l, const ig_load_options *o) {
    static ig_tier_plan plan;
    ig_tier_plan_make(&plan, l->model, ig_load_tier(o));
    l->tier = plan.greedy, l->tier_sampled = plan.sampled;
}

/* An id that one of the two does not know would be read or printed as something else. In folders the two
 * differ by custom: rows are added for alignment (such an id prints nothing), tokens for other modalities
 * (the engine refuses a prompt with such an id). */
ig_status ig_load_check_vocabulary(const ig_tokenizer *t, const ig_model *m, const char *path, bool folder,
                                   ig_err *err) {
    uint32_t n_tokens = ig_tokenizer_n_vocab(t);
    int n_rows = ig_model_config_of(m)->n_vocab;
    int64_t spare = n_rows - (int64_t)n_tokens;
    if (spare == 0 || (folder && spare > -SPARE_IDS_MAX && spare < SPARE_IDS_MAX)) return IG_OK;
    return ig_fail(err, IG_EFORMAT, "%.200s: the tokenizer has %" PRIu32 " tokens, the embedding %d rows",
                   path, n_tokens, n_rows);
}

/* ---- --logit-bias -------------------------------------------------------------------------------------- */

int ig_biases_read(ig_biases *b, ig_sampling *s) {
    for (int i = 0; i < b->text.n; i++) {
        const char *text = b->text.v[i];
        char *end, *last;
        errno = 0;
        const unsigned long long id = strtoull(text, &end, 10);
        const bool digits = text[0] >= '0' && text[0] <= '9' && *end == '=' && end[1] && !isspace((uint8_t)end[1]);
        const double bias = digits ? strtod(end + 1, &last) : 0;
        if (!digits || *last || errno || id >= UINT32_MAX)
            return ig_app_say(IG_EXIT_USAGE,
                              "--logit-bias is \"%.80s\"; it wants a token's id and a number, as in 13=-5", text);
        if (!(bias >= -BIAS_MAX && bias <= BIAS_MAX))
            return ig_app_say(IG_EXIT_USAGE, "--logit-bias is %.80s, limit %d..%d", text, -BIAS_MAX,
                              BIAS_MAX);
        b->v[i] = (ig_token_bias){(uint32_t)id, (float)bias};
    }
    s->logit_bias = b->v;
    s->n_logit_bias = b->text.n;
    return IG_EXIT_OK;
}

int ig_biases_check(const ig_sampling *s, const ig_loaded *l) {
    const int n_vocab = ig_model_config_of(l->model)->n_vocab;
    for (int i = 0; i < s->n_logit_bias; i++)
        if (s->logit_bias[i].id >= (uint32_t)n_vocab)
            return ig_app_say(IG_EXIT_USAGE, "--logit-bias is for token %" PRIu32 ", the vocabulary has %d",
                              s->logit_bias[i].id, n_vocab);
    return IG_EXIT_OK;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

ig_status ig_load_files(ig_gguf **gguf, ig_snapshot **snapshot, const char *path, ig_err *err) {
    struct stat info;
    char name[256];
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) return ig_gguf_open(gguf, path, err);
    ig_status st = ig_snapshot_open(snapshot, path, err);
    if (st == IG_ENOTFOUND && ig_models_gguf_in(name, sizeof name, path))
        return ig_fail(err, st, "%.200s is a folder with GGUF files: give one of them, such as %s", path,
                       name);
    if (st != IG_ENOTFOUND) return st;
    if (err) err->code = IG_EFORMAT; /* the folder is there; what it lacks makes it no model */
    return IG_EFORMAT;
}

ig_status ig_load_plan(ig_engine_plan *out, const ig_model *m, const ig_load_options *o, ig_err *err) {
    ig_err why;
    ig_engine_config least = o->engine;
    ig_status st = ig_engine_plan_make(out, m, &o->engine, &why);
    if (st) ig_fail(err, st, "%s", why.msg);
    least.n_ctx = 2;
    if (st != IG_ELIMIT || ig_engine_plan_make(out, m, &least, NULL)) return st;
    const bool wide = o->kv_bits == 16 && ig_load_tier(o) == IG_TIER_L3;
    return ig_fail(err, st, "%s; --ctx N asks for a shorter one%s", why.msg,
                   wide ? ", --kv-bits 8 keeps more in the same memory" : "");
}

/* What a model that was made for vectors says, if the engine can do it. */
static ig_pooling own_pooling(const ig_model *m) {
    const ig_model_config *c = ig_model_config_of(m);
    if (c->pooling == IG_POOLING_MEAN || c->pooling == IG_POOLING_LAST) return c->pooling;
    return c->pooling == IG_POOLING_NONE && c->no_head ? IG_POOLING_LAST : IG_POOLING_NONE;
}

static ig_status load_parts(ig_loaded *l, const ig_load_options *o, ig_err *err) {
    struct stat info;
    pthread_t thread;
    ig_status st = ig_load_files(&l->gguf, &l->snapshot, l->path, err);
    if (st) return st;
    if (stat(l->path, &info) == 0) l->modified_s = (int64_t)info.st_mtime;

    text_job job = {.gguf = l->gguf, .snapshot = l->snapshot, .template_path = o->chat_template};
    bool aside = !o->text_only && pthread_create(&thread, NULL, load_text, &job) == 0;
    if (!aside) load_text(&job);
    const uint64_t since_ns = ig_clock_ns();
    st = o->text_only ? IG_OK : load_model(l, o, err);
    l->weights_ns = ig_clock_ns() - since_ns;
    if (aside) pthread_join(thread, NULL);
    l->tokenizer = job.tokenizer;
    l->chat = job.chat;
    l->chat_err = job.chat_err;
    l->no_template = job.no_template;
    l->text_ns = job.ns;
    /* What the weights say comes first: a family that we do not run also has a tokenizer that we do not. */
    if (st) return st;
    if (job.st) {
        if (err) *err = job.err;
        return job.st;
    }
    if (o->text_only) return IG_OK;
    note_tiers(l, o);
    st = ig_load_check_vocabulary(l->tokenizer, l->model, l->path, l->snapshot != NULL, err);
    if (st) return st;
    if (ig_model_config_of(l->model)->no_head && !o->vectors)
        return ig_fail(err, IG_EFORMAT,
                       "%.200s has no head: it gives vectors of texts (ingle embed) and no tokens", l->path);
    if ((!o->vectors || !o->no_engine) && (st = ig_load_plan(&l->plan, l->model, o, err))) return st;
    if (o->no_engine) return IG_OK;
    ig_engine_config engine = o->engine;
    if (o->vectors && engine.pooling == IG_POOLING_NONE) engine.pooling = own_pooling(l->model);
    l->pooling = engine.pooling;
    if ((st = ig_engine_start(&l->engine, l->model, &engine, err))) return st;
    l->plan = ig_engine_plan_of(l->engine);
    return IG_OK;
}

int ig_load_check_numbers(const ig_load_options *o) {
    const ig_tier kv8 = ig_node_find("kv.q_encode")->tier;
    if (o->kv_bits == 8 && ig_load_tier(o) < kv8)
        return ig_app_say(IG_EXIT_USAGE,
                          "--%s keeps keys and values as its reference does, in 16 bits; --kv-bits 8 is a format of our "
                          "own, of tier %s: leave one of the two out",
                          o->tier.by, ig_tier_name(kv8));
    if (o->kv_config && ig_load_tier(o) != IG_TIER_L2)
        return ig_app_say(IG_EXIT_USAGE,
                          "--kv-config is read by --l2, as mlx-optiq does it; to save memory there is --kv-bits 8, without --l1 "
                          "and --l2");
    if (o->act_bits == 16 && ig_load_tier(o) < ig_node_find("act.q8")->tier)
        return ig_app_say(IG_EXIT_USAGE,
                          "--%s multiplies weights with activations as its reference rounds them; --act-bits 16 is for "
                          "the int8 products of tier l3: leave one of the two out",
                          o->tier.by);
    return IG_EXIT_OK;
}

int ig_load(ig_loaded *out, const ig_load_options *o) {
    ig_loaded l = {.n_threads = o->n_threads > 0 ? o->n_threads : ig_cpu_count()};
    ig_err err;
    uint64_t started_ns = ig_clock_ns();
    int code = ig_load_check_numbers(o);
    if (!code) code = ig_models_find(&l.path, o->model);
    if (code) return code;
    ig_models_name(l.name, sizeof l.name, l.path);
    if (load_parts(&l, o, &err)) {
        ig_unload(&l);
        return ig_app_fail(&err);
    }
    l.load_ns = ig_clock_ns() - started_ns;
    *out = l;
    return IG_EXIT_OK;
}

void ig_unload(ig_loaded *l) {
    if (l->engine) ig_engine_stop(l->engine);
    if (l->model) ig_model_close(l->model);
    ig_pool_free(l->pool);
    if (l->chat) ig_template_free(l->chat);
    if (l->tokenizer) ig_tokenizer_free(l->tokenizer);
    ig_gguf_close(l->gguf);
    ig_snapshot_close(l->snapshot);
    free(l->path);
    *l = (ig_loaded){0};
}
