/* inside: what the files of hub/ share: one HTTP request, paths of the cache, locks between processes. */
#ifndef IG_HUB_INSIDE_H
#define IG_HUB_INSIDE_H

#include "hub/hub.h"

#include <stdio.h>

/* ---- http.c ----------------------------------------------------------------------------------------- */

typedef struct ig_hub_http ig_hub_http; /* one connection at a time, one thread */

/* The head of an answer, and what to make of a failure. */
typedef struct ig_hub_answer {
    int status;                     /* 0: none came */
    bool again;                     /* it failed in a way that may pass: try again */
    bool unreachable;               /* no connection could be made at all */
    int64_t content_bytes;          /* -1: not said */
    bool has_range;                 /* Content-Range: */
    uint64_t range_from, range_end; /* half open */
    int64_t range_total;            /* -1: not said */
    double retry_after_s;           /* -1: not said */
    char hash[72], commit[72];      /* of the file and the revision, as the hub itself says; or "" */
    char error[40], message[200];   /* of the hub, calm; or "" */
} ig_hub_answer;

typedef struct ig_hub_request {
    const char *url, *repo; /* repo: where a person may ask for access */
    bool ranged;
    uint64_t from, end;  /* bytes [from, end) are asked for */
    int total_s;         /* the longest that it may take; 0: as long as bytes come */
    /* The head of a good answer (200 or 206), then its bytes. An error ends the request and is its error. */
    ig_status (*head)(void *ud, const ig_hub_answer *a, ig_err *err);
    ig_status (*body)(void *ud, const uint8_t *p, size_t n, ig_err *err);
    void *ud;
} ig_hub_request;

ig_status ig_hub_http_open(ig_hub_http **out, const ig_hub_config *c, ig_err *err);
void ig_hub_http_close(ig_hub_http *h); /* NULL is fine */
/* Follows redirects. `what` names the thing in messages. */
ig_status ig_hub_http_get(ig_hub_http *h, const ig_hub_request *r, ig_hub_answer *a, const char *what,
                          ig_err *err);
/* Before try number `failures` (1, 2, ...): waits, or gives up with what was the matter. */
ig_status ig_hub_http_wait(const ig_hub_config *c, const ig_hub_answer *a, int failures,
                           void (*note)(void *ud, const char *text), void *ud, ig_err *err);
bool ig_hub_stopped(const ig_hub_config *c);
/* Waits at most so long; false: it was told to stop. */
bool ig_hub_sleep(const ig_hub_config *c, double seconds);
/* text with everything but unreserved characters (and slashes, when kept) as %XX. */
bool ig_hub_url_add(ig_buf *b, const char *text, bool keep_slashes);

/* ---- cache.c ---------------------------------------------------------------------------------------- */

/* cache/models--org--name[/below]; malloc'd. */
char *ig_hub_repo_path(const char *cache, const char *repo, const char *below);
/* "models--org--name" to "org/name". */
bool ig_hub_repo_of_folder(char out[IG_HUB_REPO_BYTES], const char *folder);
/* mkdir -p with the modes that the person's umask leaves: others may share the cache. */
ig_status ig_hub_make_dirs(const char *path, ig_err *err);
ig_status ig_hub_sync_dir(const char *path, ig_err *err);
/* What refs/<revision> says; false: nothing that is a commit. */
bool ig_hub_ref_read(char out[41], const char *repo_path, const char *revision);
ig_status ig_hub_ref_write(const char *repo_path, const char *revision, const char *commit, ig_err *err);
/* snapshots/COMMIT/path -> the blob, by a relative link. What is right already stays. */
ig_status ig_hub_link(const char *repo_path, const char *commit, const char *path, const char *hash,
                      ig_err *err);
/* A lock that ends with its process, whatever happens to that. The file holds pid and time for people. */
typedef struct ig_hub_lock {
    int fd;
    char *path;
} ig_hub_lock;
enum { IG_HUB_LOCK_SHARED = 1, IG_HUB_LOCK_WHOLE = 2 };
/* IG_EBUSY when another has it: *holder is its pid, 0 when it does not say. Never waits. */
ig_status ig_hub_lock_try(ig_hub_lock *out, const char *cache, const char *repo, const char *name, int kind,
                          int *holder, ig_err *err);
/* "process 17", or "another process" when its number is not known: a lock may be held before it is signed. */
typedef struct ig_hub_process {
    char s[32];
} ig_hub_process;
ig_hub_process ig_hub_process_text(int pid);
void ig_hub_lock_end(ig_hub_lock *l);
/* The lock that a job holds shared while it works on a repository, and whoever removes holds alone. */
#define IG_HUB_JOB_LOCK "ingle-job"

/* ---- blob.c ----------------------------------------------------------------------------------------- */

typedef struct ig_hub_blob {
    const ig_hub_config *config;
    ig_hub_http *http;
    const char *repo, *commit, *folder; /* folder: cache/models--org--name/blobs */
    const ig_hub_file *file;
    bool force, verify;
    _Atomic uint64_t *done_bytes;        /* rises by what is known to be there, to file->bytes */
    void (*note)(void *ud, const char *text);
    void *ud;
} ig_hub_blob;

/* The file under its hash in the cache, whole and right. */
ig_status ig_hub_blob_get(const ig_hub_blob *b, ig_err *err);

#endif
