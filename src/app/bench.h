/* bench: what `ingle bench` measures and what it tells.
 *
 * Through ig_model_forward and without the engine: a number here is a number of the forward.
 *   bench_plan.c     from the command line to the rows of the table
 *   bench_measure.c  runs a row: prefill of one prompt, decode of one sequence or of many together
 *   bench_profile.c  the time of each op, from the calls of a watched forward
 *   bench_machine.c  memory bandwidth, and why these threads, this instruction set, these kernels
 *   bench_report.c   the table, CSV and Markdown, row by row; bench_json.c: one object at the end
 *
 * Threads: the caller's and the model's pool. Memory: of a row's own; see each file. */
#ifndef IG_APP_BENCH_H
#define IG_APP_BENCH_H

#include "app/load.h"

enum { IG_BENCH_RUNS_MAX = 64, IG_BENCH_BATCH_MAX = 64, IG_BENCH_ROWS_MAX = 3 * IG_OPTION_LIST_MAX };

typedef struct ig_bench_text {
    char s[200];
} ig_bench_text;

typedef enum ig_bench_work { IG_BENCH_PREFILL, IG_BENCH_DECODE } ig_bench_work;

/* One kind of op in the measured forwards of a row, summed over them all. */
enum { IG_BENCH_OPS_MAX = 48, IG_BENCH_OP_WEIGHTS = 3 };
typedef struct ig_bench_op {
    const char *name;                       /* "linear+add" */
    const char *weight;                     /* as its table names it; NULL: none, or several */
    const ig_fmt *fmt[IG_BENCH_OP_WEIGHTS]; /* of its weights, different ones only */
    const ig_kern *kern;                    /* the first */
    uint64_t n_calls, ns;
    double macs, bytes; /* products; weights, keys and values read at least once */
} ig_bench_op;

typedef struct ig_bench_profile {
    ig_bench_op op[IG_BENCH_OPS_MAX];
    int n_ops;
    uint64_t n_passes; /* prompts of a prefill, steps of a decode */
} ig_bench_profile;

/* One line of the table: what is asked, then what came out. */
typedef struct ig_bench_row {
    ig_bench_work work;
    int n_tokens;  /* of the prompt; steps of the decode */
    int n_context; /* decode: tokens of a sequence before the first step */
    int n_seqs;    /* decode: sequences in a step */
    bool asked;    /* on the command line; else it is left out where it would take minutes */

    bool left_out;
    int n_runs;
    double tps, tps_min, tps_max; /* tokens a second, all sequences together; tps: the median */
    double gmacs;                 /* products a second, 1e9 */
    /* decode */
    double token_bytes; /* weights, keys and values that a token reads; a step reads its weights once */
    double gbs;         /* read, 1e9 bytes a second */
    double roofline;    /* of the memory bandwidth of these threads; 0: that was not measured */
    double others;      /* cores that other programs kept busy meanwhile; below 0: not known */
    ig_bench_profile *profile; /* or NULL */
} ig_bench_row;
/* (highest - lowest) / median */
static inline double ig_bench_spread(const ig_bench_row *r) {
    return r->tps > 0 ? (r->tps_max - r->tps_min) / r->tps : 0;
}

/* ---- bench_plan.c ------------------------------------------------------------------------------------ */

typedef struct ig_bench_wish {
    ig_option_ints prompts, contexts, batches, threads;
    int n_tokens, n_runs;
    uint64_t memory_bytes; /* for weights, keys, values and steps; 0: what is free */
    bool prompts_given, contexts_given, batches_given, tokens_given, runs_given;
    bool quick, profile;
} ig_bench_wish;
ig_bench_wish ig_bench_wish_defaults(void);
/* What `quick` means where nothing else was said, contexts that follow given prompts; lists ascend. */
void ig_bench_wish_settle(ig_bench_wish *w);
/* The rows of a settled wish for a model with a context of n_ctx tokens: prompts, contexts, then batches
 * behind the first context, each ascending. Of lists that nobody gave, what does not fit goes; the largest that does
 * stands in where nothing else is left. IG_EINVAL: what was asked for does not fit. */
ig_status ig_bench_plan(ig_bench_row rows[IG_BENCH_ROWS_MAX], int *n_rows, const ig_bench_wish *w, int n_ctx,
                        ig_err *err);

/* ---- bench_profile.c --------------------------------------------------------------------------------- */

/* Keys that rows see, and that the sequences of those rows hold; [1]: in windowed layers. */
typedef struct ig_bench_seen {
    double rows[2], seqs[2];
} ig_bench_seen;

typedef struct ig_bench_watch {
    ig_bench_profile *to;
    const ig_model_config *config;
    ig_kv_kind kv_kind;
    /* of the forward that runs; from the last layer's attention on only the wanted rows are left */
    int n_rows, n_want, n_attentions;
    ig_bench_seen all, wanted;
    /* the op that runs */
    ig_bench_op now;
    double row_macs;
    bool open;
    uint64_t since_ns;
} ig_bench_watch;
ig_trace_fn ig_bench_watch_op; /* ud: an ig_bench_watch */
/* Before and after each forward. */
void ig_bench_watch_begin(ig_bench_watch *w, const ig_rows *rows);
void ig_bench_watch_end(ig_bench_watch *w);
/* "ffn_down" of "blk.%d.ffn_down.weight", as weights of a family's table are named. */
ig_bench_text ig_bench_weight_text(const char *name);

/* Multiply-adds with weights: of a token, and of one whose logits are wanted more. */
typedef struct ig_bench_macs {
    double token, wanted;
    int n_attentions, n_layers; /* while they are counted */
} ig_bench_macs;
ig_bench_macs ig_bench_macs_of(const ig_model *m);
/* Of attention, for the tokens at positions [from, to), those from `wanted` on with logits. */
double ig_bench_attention_macs(const ig_model_config *c, int from, int wanted, int to);

/* ---- bench_measure.c --------------------------------------------------------------------------------- */

typedef struct ig_bench ig_bench;
/* Memory for all of `rows`. IG_ELIMIT: there is not so much, or the wish allows less. */
ig_status ig_bench_make(ig_bench **out, ig_model *m, const ig_bench_row *rows, int n_rows, const ig_bench_wish *w,
                        ig_err *err);
void ig_bench_free(ig_bench *b); /* NULL is fine */
/* Something short, so that caches, clocks and pages are as they will be. */
ig_status ig_bench_warm_up(ig_bench *b, ig_err *err);
/* Told a few times a second; `context`: what comes before the run is being computed. */
typedef void ig_bench_progress(const ig_bench_row *row, int run, bool context, int percent);
/* Fills in what comes out but the roofline. `progress` may be NULL. IG_ECANCELED: a signal came. */
ig_status ig_bench_measure(ig_bench *b, ig_bench_row *row, ig_bench_progress *progress, ig_err *err);

/* ---- bench_machine.c --------------------------------------------------------------------------------- */

/* Bytes a second that these threads read from memory; 0: there is no memory free to measure it with. */
double ig_bench_bandwidth(ig_pool *pool);

/* What other programs do meanwhile: between two looks at the clocks of all cores and at our own. */
typedef struct ig_bench_look {
    double all_s, own_s; /* CPU time; all_s below 0: the system does not say */
    uint64_t ns;
} ig_bench_look;
ig_bench_look ig_bench_look_now(void);
double ig_bench_others(ig_bench_look since); /* in cores; below 0: not known */

ig_bench_text ig_bench_why_threads(int n_threads, bool asked);
/* The instruction set of the kernel that does most of the work: "avx2". */
ig_bench_text ig_bench_isa(const ig_model *m);
ig_bench_text ig_bench_why_isa(uint32_t cpu);
/* "ranked first of 3 here; 1 needs avx512" */
ig_bench_text ig_bench_why_kernel(const ig_kern *k, uint32_t cpu);
ig_bench_text ig_bench_features(uint32_t cpu); /* "avx2 fma" */

enum { IG_BENCH_KERNELS_MAX = 64 };
typedef struct ig_bench_kernels {
    struct ig_bench_kernel {
        const char *op;
        const ig_kern *kern;
        int n; /* in a forward */
    } v[IG_BENCH_KERNELS_MAX];
    int n;
} ig_bench_kernels;
void ig_bench_kernels_of(ig_bench_kernels *out, const ig_model *m);

/* ---- bench_report.c, bench_json.c -------------------------------------------------------------------- */

/* Everything measured with one number of threads. */
typedef struct ig_bench_set {
    int n_threads;
    bool threads_asked;
    double bandwidth;                     /* of the threads, bytes a second */
    double ready_ms, weights_ms, text_ms; /* text: tokenizer and template, beside the weights */
    uint64_t ready_bytes, end_bytes;      /* resident */
    ig_bench_row *rows;
    int n_rows;
} ig_bench_set;

typedef struct ig_bench_report {
    const ig_bench_wish *wish;
    char model[128];
    uint64_t n_params, weights_bytes, decode_bytes;
    int kv_bits, act_bits;
    const char *tier; /* of the numbers at temperature 0: "l3" */
    char family[32];
    ig_bench_text isa;
    ig_bench_kernels kernels;
    double bandwidth_one; /* of one thread */
    char utc[24];         /* when it began: "2026-11-30T12:00:00Z" */
    ig_bench_set set[IG_OPTION_LIST_MAX];
    int n_sets; /* the last one is being filled */
} ig_bench_report;

/* How results are told. `rows` as they come; each of them may be NULL. end gives the exit code. */
typedef struct ig_bench_format {
    const char *name;
    void (*begin_set)(const ig_bench_report *r);
    void (*row)(const ig_bench_report *r, const ig_bench_row *row);
    void (*end_set)(const ig_bench_report *r);
    int (*end)(const ig_bench_report *r);
} ig_bench_format;
const ig_bench_format *ig_bench_format_of(const char *name); /* text json csv md; NULL: none of them */
int ig_bench_print_json(const ig_bench_report *r);
/* "decode 4 x behind 128" */
ig_bench_text ig_bench_row_text(const ig_bench_row *row);

#endif
