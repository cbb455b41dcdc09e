/* hub: models on a hub, and models on this disk.
 *
 * Owns:    names of repositories and quantizations, what a hub says of a repository, downloads, the cache
 *          folder that Python's huggingface_hub shares with us, the list of what lies there and in the models
 *          folder, and what may be removed again.
 * Takes:   a configuration that holds everything the environment says: nothing else here reads it.
 * Gives:   folders and files whose every byte was compared with the hub's SHA-256 (or git's SHA-1) before
 *          they got their name. A model that is not whole is never under a name that looks whole.
 * Threads: a fetch starts its own, one a file at a time; its events come on the caller's thread. Everything
 *          else belongs to the thread that calls.
 * Memory:  malloc, bounded: 32 MiB of JSON, 100,000 files a repository, 1 MiB a file in flight.
 * Fails:   IG_ENETWORK (out of reach, refused, stalled), IG_ENOTFOUND (no such repository, file or
 *          quantization), IG_EFORMAT (what came is not what the hub promised), IG_EBUSY (another process),
 *          IG_EIO (disk), IG_ECANCELED (the person). Whatever fails, what was fetched stays for the next try.
 * Trusts:  nobody. Sizes, paths, hashes, redirects and bodies are checked; the token goes to the endpoint's
 *          own host and nowhere else, and never into a message.
 * Not here: what is inside a model file (file/, model/); talking to the person (app/). */
#ifndef IG_HUB_H
#define IG_HUB_H

#include "base/base.h"

#include <signal.h>

/* ---- name.c: what people call a model --------------------------------------------------------------- */

enum {
    IG_HUB_REPO_BYTES = 200,  /* org/name, each at most 96 */
    IG_HUB_PATH_BYTES = 1024, /* of a file in a repository, NUL included; each part at most 255 */
    IG_HUB_QUANT_BYTES = 32,
    IG_HUB_HASH_BYTES = 65    /* SHA-256 as 64 hex digits, git's SHA-1 as 40, and a NUL */
};

typedef struct ig_hub_name {
    char repo[IG_HUB_REPO_BYTES];  /* org/name */
    char pick[IG_HUB_PATH_BYTES];  /* what stood behind a colon: a file or a quantization; "" for nothing */
} ig_hub_name;

/* org/name, org/name:FILE, org/name:Q4_K_M; also with the address of the hub's page before it. */
ig_status ig_hub_name_parse(ig_hub_name *out, const char *text, ig_err *err);
/* A branch, a tag, refs/pr/1 or a commit: something that is safe as a path below refs/. */
bool ig_hub_revision_good(const char *revision);
/* A relative path that stays inside: no empty part, no "." or "..", no control characters, valid UTF-8. */
bool ig_hub_path_good(ig_slice path);
bool ig_hub_hash_good(ig_slice hash); /* 40 or 64 lower-case hex digits */

/* What the name of a GGUF file says. */
typedef struct ig_hub_gguf {
    char quant[IG_HUB_QUANT_BYTES]; /* "Q4_K_M", upper case; "" when it does not say */
    size_t n_stem;                  /* bytes of the path before -00001-of-00002.gguf or .gguf */
    int part, n_parts;              /* 1 of 1 when it is not split */
    bool is_model;                  /* not a projector (mmproj) and not calibration data (imatrix) */
} ig_hub_gguf;
bool ig_hub_gguf_of(ig_hub_gguf *out, const char *path); /* false: it does not end in .gguf */
/* Does `pick` mean this quantization: in any case, and UD-Q4_K_XL also without its UD-. */
bool ig_hub_quant_is(const char *quant, const char *pick);
/* The lower, the sooner it is taken when nobody chose: Q4_K_M first, as others do. */
int ig_hub_quant_rank(const char *quant);

/* ---- config.c: what the environment says ------------------------------------------------------------ */

typedef struct ig_hub_config {
    char endpoint[512];  /* HF_ENDPOINT, without a slash at its end */
    char token[512];     /* HF_TOKEN, or the file of HF_TOKEN_PATH, or token in HF_HOME; "" for none */
    char cache[3072];    /* HF_HUB_CACHE, or hub in HF_HOME; the folder may not be there */
    char ca_file[1024];  /* CURL_CA_BUNDLE or SSL_CERT_FILE; "" for the system's */
    bool offline;        /* HF_HUB_OFFLINE */
    int timeout_s;       /* without a byte a connection is given up; HF_HUB_DOWNLOAD_TIMEOUT */
    int retries;         /* failures in a row, without progress between them */
    double retry_wait_s; /* before the first retry; doubles up to 16 times that */
    const volatile sig_atomic_t *stop; /* non-zero ends everything soon, with IG_ECANCELED; or NULL */
} ig_hub_config;

ig_status ig_hub_config_init(ig_hub_config *out, ig_err *err);
/* Only the cache folder: for those who look and do not ask anybody. False: no HOME either. */
bool ig_hub_cache_dir(char *out, size_t cap);
bool ig_hub_state_dir(char *out, size_t cap); /* INGLE_STATE, $XDG_STATE_HOME/ingle, ~/.local/state/ingle */

/* ---- repo.c: what the hub says of a repository ------------------------------------------------------ */

typedef struct ig_hub_file {
    char *path;
    uint64_t bytes;
    char hash[IG_HUB_HASH_BYTES]; /* also its name in the cache */
    bool wanted;                  /* set by ig_hub_choose */
} ig_hub_file;

typedef struct ig_hub_repo {
    char name[IG_HUB_REPO_BYTES], revision[256], commit[41];
    ig_hub_file *v; /* sorted by path, no two alike */
    int n;
} ig_hub_repo;

/* The answer to GET /api/models/{repo}/revision/{revision}?blobs=true. name and revision stay empty. */
ig_status ig_hub_repo_parse(ig_hub_repo *out, const char *json, size_t n, ig_err *err);
void ig_hub_repo_clear(ig_hub_repo *r); /* a zeroed one is fine */
/* Asks the hub. */
ig_status ig_hub_repo_ask(ig_hub_repo *out, const ig_hub_config *c, const char *repo, const char *revision,
                          void (*note)(void *ud, const char *text), void *ud, ig_err *err);

/* ---- choose.c: which files of it -------------------------------------------------------------------- */

typedef struct ig_hub_want {
    const char *pick;                  /* a file or a quantization, or NULL */
    const char *const *include;        /* patterns of a shell, NULL-ended, stars pass slashes; or NULL */
    const char *const *exclude;
} ig_hub_want;

/* One quantization of a repository of GGUF files: all parts of it. */
typedef struct ig_hub_variant {
    char quant[IG_HUB_QUANT_BYTES]; /* or "" */
    const char *path;               /* its first part; of the repository */
    uint64_t bytes;
    int n_files;
    bool taken;
} ig_hub_variant;

typedef struct ig_hub_choice {
    ig_hub_variant *variant; /* every quantization there is, sorted by size */
    int n_variants;
    int n_files;             /* wanted */
    uint64_t bytes;
    const char *gguf;        /* the file that is the model, when it is a GGUF; of the repository */
    bool by_default;         /* nobody chose among the quantizations */
} ig_hub_choice;

/* Marks the files. Without a wish: config, tokenizer, templates and safetensors, or, where there are GGUF
 * files only, one quantization. `out` is filled also when it fails for a lack of choice (IG_ENOTFOUND). */
ig_status ig_hub_choose(ig_hub_choice *out, ig_hub_repo *r, const ig_hub_want *want, ig_err *err);
void ig_hub_choice_clear(ig_hub_choice *c);

/* ---- fetch.c: a job of many files ------------------------------------------------------------------- */

typedef enum ig_hub_event_kind {
    IG_HUB_EVENT_PROGRESS, /* some five times a second */
    IG_HUB_EVENT_NOTE,     /* text: a retry, a wait, a repair */
    IG_HUB_EVENT_FILE      /* a file is whole */
} ig_hub_event_kind;

typedef struct ig_hub_event {
    ig_hub_event_kind kind;
    const char *file, *text;         /* or NULL */
    uint64_t file_bytes;
    uint64_t done_bytes, total_bytes; /* of the job; never less than before */
    int done_files, total_files;
    double bytes_per_s;               /* over the last five seconds */
} ig_hub_event;

typedef struct ig_hub_fetch {
    int n_jobs;  /* files at once */
    bool force;  /* fetch also what is there */
    bool verify; /* read what is there, and fetch what is not right */
    void (*event)(void *ud, const ig_hub_event *e);
    void *ud;
} ig_hub_fetch;

/* Bytes of wanted files that are not there yet, and how many files that is. What an earlier try left counts
 * as there, before it was checked. */
void ig_hub_missing(uint64_t *bytes, int *n_files, const ig_hub_config *c, const ig_hub_repo *r);
/* Brings every wanted file into the cache, links them into the snapshot and names it. */
ig_status ig_hub_fetch_run(const ig_hub_config *c, const ig_hub_repo *r, const ig_hub_fetch *o, ig_err *err);
/* cache/models--org--name/snapshots/COMMIT[/path]. malloc'd, NULL without memory. */
char *ig_hub_snapshot_path(const char *cache, const ig_hub_repo *r, const char *path);

/* ---- library.c: what is on this disk ---------------------------------------------------------------- */

typedef struct ig_hub_item {
    char *name;   /* org/name, org/name:Q4_K_M, or the name of a file or folder in the models folder */
    char *path;   /* a GGUF file, its first part when split, or a snapshot's folder */
    char *repo, *commit; /* NULL for the models folder; no commit when unfinished */
    bool gguf, current;  /* current: what org/name means */
    bool unfinished;     /* no model: what a download has brought so far; `path` is the repository's folder */
    uint64_t bytes;      /* of weights */
    int64_t modified_ns;
} ig_hub_item;

typedef struct ig_hub_items {
    ig_hub_item *v; /* sorted by name */
    int n;
    char warning[256]; /* why the list may lack something, for people; "" for nothing */
} ig_hub_items;

/* Reads names and sizes only. Folders that are not there are empty; either may be NULL. */
ig_status ig_hub_list(ig_hub_items *out, const char *cache, const char *models, bool all_revisions,
                      ig_err *err);
void ig_hub_items_clear(ig_hub_items *l);

/* What somebody else found out about an item: kept in registry.json, which may be deleted at any time. */
typedef struct ig_hub_facts {
    char architecture[64];
    double bits;      /* a weight; 0: unknown */
    uint64_t n_ctx;   /* 0: unknown */
    bool runs;        /* we have this family and these formats */
    char why[256];    /* when it does not */
} ig_hub_facts;

typedef struct ig_hub_registry ig_hub_registry;
/* A corrupt one is an empty one. */
ig_status ig_hub_registry_open(ig_hub_registry **out, const char *path, ig_err *err);
void ig_hub_registry_close(ig_hub_registry *g);
/* False: not there, or the item has changed since. */
bool ig_hub_registry_get(const ig_hub_registry *g, const ig_hub_item *item, ig_hub_facts *out);
/* Can it be kept at all: JSON has no place for a path that is no UTF-8, and an unfinished download no facts.
 * */
bool ig_hub_registry_keeps(const ig_hub_item *item);
/* Writes these items, but those that cannot be kept, and nothing else. */
ig_status ig_hub_registry_save(const char *path, const ig_hub_items *l, const ig_hub_facts *facts,
                               ig_err *err);

/* ---- server.c: who serves what ---------------------------------------------------------------------- */

typedef struct ig_hub_server ig_hub_server;
/* Says in STATE/servers/PID.json that this process serves the model at `path`, until ig_hub_server_end or
 * the end of the process. */
ig_status ig_hub_server_begin(ig_hub_server **out, const char *state, const char *path, const char *model,
                              const char *url, int port, ig_err *err);
void ig_hub_server_end(ig_hub_server *s);
/* The process that serves a model at `path` or below it, 0 for none. */
int ig_hub_served_by(const char *state, const char *path);

/* ---- remove.c: what may go -------------------------------------------------------------------------- */

typedef struct ig_hub_remove {
    bool run;           /* false: only say what would go */
    bool force;         /* also snapshots that no ref names and that hold files no other has */
    int64_t now_s;
    const char *state;  /* where servers are noted, or NULL */
    /* bytes: what the disk gets back. With `run` it is called once the thing is gone. */
    void (*gone)(void *ud, const char *path, uint64_t bytes, const char *why);
    void (*kept)(void *ud, const char *path, const char *why);
    void (*failed)(void *ud, const char *path, const char *why); /* it should go, and did not; or NULL */
    void *ud;
} ig_hub_remove;

/* All of these: IG_EIO when something could not be removed, or not be read; the rest has gone then. */
/* In every repository: snapshots that no ref names, blobs that nothing names, and what tries left behind more
 * than seven days ago. */
ig_status ig_hub_gc(const char *cache, const ig_hub_remove *o, ig_err *err);
/* In the folder "blobs" beside the models folder, where the starter lies: blobs of more than a day to which
 * no link of the models folder leads, and what tries left behind more than seven days ago. */
ig_status ig_hub_gc_own(const char *models, const ig_hub_remove *o, ig_err *err);
/* The files of one item, and the repository with its last one, unless a download of it is unfinished. A
 * repository is an item as well (whole: all its revisions and unfinished downloads). A link of the models
 * folder goes with its blob when that lies in the folder "blobs" beside it and no other link leads to it.
 * IG_EBUSY: it is served or being downloaded. */
ig_status ig_hub_rm(const char *cache, const char *models, const ig_hub_item *item, bool whole,
                    const ig_hub_remove *o, ig_err *err);

#endif
