/* file: bytes on disk and their formats. Everything read here is hostile until checked.
 *
 * Owns:    open files, the parsed headers of GGUF and safetensors files, JSON documents.
 * Gives:   checked views: a tensor of an open ig_gguf or ig_safetensors lies inside the file, does not
 *          overlap another, and its size follows from its type and shape. A snapshot is the folder of a
 *          model as hubs serve it: safetensors files and JSON documents.
 * Threads: what is open is read-only: any number of threads may read tensors from it at once.
 * Memory:  headers are read into malloc'd memory bounded by the file's size and a constant.
 *          Tensor bytes are read by pread into the caller's buffer, not mapped: a file that shrinks
 *          while we read is a short read (an error) and not a SIGBUS.
 * Fails:   IG_ENOTFOUND (no file, no key), IG_EIO (system), IG_EFORMAT (bytes), IG_ELIMIT (bounds);
 *          messages name the path, the key or tensor, the value and the bound.
 * Not here: what a tensor's numbers mean (kern/), which tensors a model needs (model/). */
#ifndef IG_FILE_H
#define IG_FILE_H

#include "base/base.h"

#include <yyjson.h>

/* ---- read.c: whole small files ---------------------------------------------------------------------- */

/* malloc'd, NUL-terminated one past *n. Regular files only; larger than bytes_max is IG_ELIMIT. */
ig_status ig_file_slurp(char **out, size_t *n, const char *path, size_t bytes_max, ig_err *err);

/* ---- atomic.c: no half files ------------------------------------------------------------------------ */

/* Writes beside `path`, syncs, renames. Mode 0600. The old content stays if anything fails. */
ig_status ig_file_replace(const char *path, const void *bytes, size_t n, ig_err *err);
/* mkdir -p, mode 0700 for what is made. */
ig_status ig_file_make_dirs(const char *path, ig_err *err);

/* ---- json.c: yyjson with our limits and our messages ------------------------------------------------ */

typedef struct ig_json_limits {
    size_t bytes_max;
    int depth_max; /* 128 for requests */
} ig_json_limits;

/* Strict UTF-8 JSON (a BOM is skipped; a lone surrogate escape becomes U+FFFD; duplicate keys: look-ups
 * by ig_json_get see the last). Errors give the byte offset. Free with yyjson_doc_free.
 * Depth is checked before yyjson sees the text, so no recursion of ours follows the input. */
ig_status ig_json_parse(yyjson_doc **out, const char *text, size_t n, ig_json_limits limits, ig_err *err);
/* A document to be written. *lost becomes true when there was no memory for a part of it: a look before it is
 * used saves one at every part. NULL is fine for yyjson, and sets it. */
yyjson_mut_doc *ig_json_doc_make(bool *lost);
/* A string of any bytes, copied: each byte that is no UTF-8 becomes U+FFFD. Names of files may hold anything
 * but a slash and a zero, and yyjson writes no document with a string that is no UTF-8. NULL: no memory. */
yyjson_mut_val *ig_json_bytes(yyjson_mut_doc *doc, const char *p, size_t n);
/* The same as the member `key` (not copied) of obj. False: no memory. */
bool ig_json_add_bytes(yyjson_mut_doc *doc, yyjson_mut_val *obj, const char *key, const char *text);
/* The member of an object, the last one of that name; NULL when absent, JSON null, or `obj` is no object. */
yyjson_val *ig_json_get(yyjson_val *obj, const char *key);
/* A number, or {"__float__": "Infinity" | "-Infinity" | "NaN"}, as some writers spell those. */
bool ig_json_number(yyjson_val *v, double *out);

/* ---- gguf.c ----------------------------------------------------------------------------------------- */

enum {
    IG_GGUF_DIMS_MAX = 4,
    IG_GGUF_NAME_MAX = 255,              /* bytes of a tensor name */
    IG_GGUF_HEADER_MAX = 256 * 1024 * 1024 /* bytes before the tensor data */
};

/* Value types of metadata, as numbered in the format. */
typedef enum ig_gguf_kind {
    IG_GGUF_U8, IG_GGUF_I8, IG_GGUF_U16, IG_GGUF_I16, IG_GGUF_U32, IG_GGUF_I32, IG_GGUF_F32, IG_GGUF_BOOL,
    IG_GGUF_STRING, IG_GGUF_ARRAY, IG_GGUF_U64, IG_GGUF_I64, IG_GGUF_F64
} ig_gguf_kind;

typedef struct ig_gguf ig_gguf;

typedef struct ig_gguf_tensor {
    ig_slice name;
    uint32_t type;             /* number of the block type in the format */
    int n_dims;
    uint64_t dim[IG_GGUF_DIMS_MAX]; /* innermost first; 1 beyond n_dims */
    uint64_t offset;           /* from the start of its file */
    uint64_t n_bytes;
    const ig_gguf *file;       /* the part of a split model that it lies in; else the file itself */
} ig_gguf_tensor;

/* An array of metadata. Strings: item i is strings[i]. Others: `bytes` holds n items of `kind`,
 * little-endian and unaligned; use ig_gguf_array_u64 / _f64. */
typedef struct ig_gguf_array {
    ig_gguf_kind kind;
    uint64_t n;
    const uint8_t *bytes;
    const ig_slice *strings;
} ig_gguf_array;

/* A model split into files (NAME-00001-of-00003.gguf) opens by the path of any of them and is one ig_gguf: the
 * first part's metadata, everybody's tensors. A part that is missing, there twice or from another model is an
 * error that names it. Of another model: its number of parts or of tensors is another, or it has a key, but for
 * split.* and general.alignment, that the first part has not, or has otherwise. */
ig_status ig_gguf_open(ig_gguf **out, const char *path, ig_err *err);
void ig_gguf_close(ig_gguf *g); /* NULL is fine */
const char *ig_gguf_path(const ig_gguf *g);        /* of the first part */
uint64_t ig_gguf_file_bytes(const ig_gguf *g);     /* of all parts */
int ig_gguf_n_files(const ig_gguf *g);

/* Metadata. IG_ENOTFOUND when the key is absent; IG_EFORMAT when its type or sign does not fit. Any
 * integer type answers u64 when it is not negative; any integer or float answers f64. */
ig_status ig_gguf_get_u64(const ig_gguf *g, const char *key, uint64_t *out, ig_err *err);
ig_status ig_gguf_get_f64(const ig_gguf *g, const char *key, double *out, ig_err *err);
ig_status ig_gguf_get_bool(const ig_gguf *g, const char *key, bool *out, ig_err *err);
ig_status ig_gguf_get_string(const ig_gguf *g, const char *key, ig_slice *out, ig_err *err);
ig_status ig_gguf_get_array(const ig_gguf *g, const char *key, ig_gguf_array *out, ig_err *err);
/* Integer kinds and bool; negatives as two's complement. Of another kind: UINT64_MAX. */
uint64_t ig_gguf_array_u64(const ig_gguf_array *a, uint64_t i);
/* Any number kind. Of another kind: NaN. */
double ig_gguf_array_f64(const ig_gguf_array *a, uint64_t i);
int ig_gguf_n_keys(const ig_gguf *g);
ig_slice ig_gguf_key(const ig_gguf *g, int i, ig_gguf_kind *kind);

int ig_gguf_n_tensors(const ig_gguf *g);
const ig_gguf_tensor *ig_gguf_tensor_at(const ig_gguf *g, int i);
const ig_gguf_tensor *ig_gguf_find(const ig_gguf *g, const char *name); /* NULL: absent */
/* n bytes of a tensor from byte `from` on, whole or an error. */
ig_status ig_gguf_read(const ig_gguf *g, const ig_gguf_tensor *t, uint64_t from, void *out, size_t n,
                       ig_err *err);

/* The block type by number: its name in the format ("Q4_1"), values and bytes of a block. NULL: unknown. A
 * type known by name only has n_values 0; no tensor of an open file is of such a type. */
typedef struct ig_gguf_type {
    const char *name;
    uint32_t n_values, n_bytes;
} ig_gguf_type;
const ig_gguf_type *ig_gguf_type_of(uint32_t type);

/* ---- safetensors.c ---------------------------------------------------------------------------------- */

enum {
    IG_SAFETENSORS_DIMS_MAX = 8,
    IG_SAFETENSORS_NAME_MAX = 255,               /* bytes of a tensor name */
    IG_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000 /* bytes of its JSON, as the format says */
};

typedef enum ig_dtype {
    IG_DTYPE_F64, IG_DTYPE_F32, IG_DTYPE_F16, IG_DTYPE_BF16, IG_DTYPE_F8_E4M3, IG_DTYPE_F8_E5M2,
    IG_DTYPE_I64, IG_DTYPE_I32, IG_DTYPE_I16, IG_DTYPE_I8,
    IG_DTYPE_U64, IG_DTYPE_U32, IG_DTYPE_U16, IG_DTYPE_U8, IG_DTYPE_BOOL
} ig_dtype;
const char *ig_dtype_name(ig_dtype d); /* as in the format: "BF16" */
int ig_dtype_bytes(ig_dtype d);        /* of one value */

typedef struct ig_safetensors ig_safetensors;

typedef struct ig_safetensor {
    ig_slice name;
    ig_dtype dtype;
    int n_dims;                            /* 0: one value */
    uint64_t dim[IG_SAFETENSORS_DIMS_MAX]; /* outermost first, as written; 1 beyond n_dims; may be 0 */
    uint64_t offset;                       /* from the start of the file */
    uint64_t n_bytes;
    const ig_safetensors *file;
} ig_safetensor;

ig_status ig_safetensors_open(ig_safetensors **out, const char *path, ig_err *err);
void ig_safetensors_close(ig_safetensors *s); /* NULL is fine */
const char *ig_safetensors_path(const ig_safetensors *s);
uint64_t ig_safetensors_file_bytes(const ig_safetensors *s);
int ig_safetensors_n_tensors(const ig_safetensors *s);
const ig_safetensor *ig_safetensors_tensor_at(const ig_safetensors *s, int i); /* sorted by name */
const ig_safetensor *ig_safetensors_find(const ig_safetensors *s, const char *name); /* NULL: absent */
/* n bytes of a tensor from byte `from` on, whole or an error. */
ig_status ig_safetensor_read(const ig_safetensor *t, uint64_t from, void *out, size_t n, ig_err *err);

/* ---- snapshot.c ------------------------------------------------------------------------------------- */

/* A folder with config.json and model.safetensors, or the shards that model.safetensors.index.json names.
 * A link inside the folder may point anywhere (hub caches are made of links); names in the index may not. */
typedef struct ig_snapshot ig_snapshot;

ig_status ig_snapshot_open(ig_snapshot **out, const char *folder, ig_err *err);
void ig_snapshot_close(ig_snapshot *s); /* NULL is fine */
const char *ig_snapshot_path(const ig_snapshot *s); /* the folder */
uint64_t ig_snapshot_weights_bytes(const ig_snapshot *s); /* of all safetensors files */
int ig_snapshot_n_files(const ig_snapshot *s);
int ig_snapshot_n_tensors(const ig_snapshot *s);
const ig_safetensor *ig_snapshot_tensor_at(const ig_snapshot *s, int i); /* sorted by name */
const ig_safetensor *ig_snapshot_find(const ig_snapshot *s, const char *name); /* NULL: absent */
int ig_snapshot_place(const ig_snapshot *s, const ig_safetensor *t); /* i with tensor_at(i) == t */
yyjson_val *ig_snapshot_config(const ig_snapshot *s); /* config.json, an object; lives as long as s */
/* A document of the folder by name, read anew each time. IG_ENOTFOUND: not there. JSON: free with
 * yyjson_doc_free. Text: malloc'd, NUL-terminated one past *n, not checked. At most 16 MiB, tokenizer.json
 * at most 128 MiB. */
ig_status ig_snapshot_json(yyjson_doc **out, const ig_snapshot *s, const char *name, ig_err *err);
ig_status ig_snapshot_text(char **out, size_t *n, const ig_snapshot *s, const char *name, ig_err *err);

#endif
