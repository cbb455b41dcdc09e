/* check_kern: walks the list of kernels. Each variant that this CPU can run is compared with the scalar
 * one, bit for bit: odd sizes, tails, row counts 1..13 and 48, rows in company and alone, every output
 * between guard pages, extreme values. The scalar ones are compared with float64 within bounds.
 * A negative control breaks one activation and expects the comparison to notice. */
#include "kern/check_golden.h"
#include "kern/check_rig.h"
#include "kern/kv_affine.h"

#include <math.h>

static int n_passed, n_failed;

/* For tools/proof.py: this variant, which has passed, gives the bits of the scalar one. */
static void note_proven(FILE *f, const ig_kern *k) {
    if (f) fprintf(f, "kernel %s equals scalar\n", k->name);
}

static void result(bool ok, const char *name, const char *what) {
    if (ok)
        n_passed++;
    else
        n_failed++, printf("FAIL %s: %s\n", name, what);
}

static void check_linear(const ig_kern *k) {
    const ig_kern *ref = ig_kern_reference(IG_KERN_LINEAR, k->fmt);
    const ig_kern *dequant = ig_kern_reference(IG_KERN_DEQUANT, k->fmt);
    static const int cols[] = {32, 64, 96, 256, 576, 640, 768, 1536};
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 48};
    bool same = true, alone = true, near = true, notices = true;
    for (size_t ci = 0; ci < sizeof cols / sizeof *cols; ci++) {
        int n_cols = cols[ci];
        if (n_cols % k->fmt->group || n_cols % k->fmt->panel_group) continue;
        uint8_t *file = malloc(ig_fmt_row_bytes(k->fmt, n_cols) * IG_PANEL_ROWS);
        const weights kind = ci % 2 ? WILD : ORDINARY;
        guarded panel = random_panel(k->fmt, n_cols, file, kind);
        acts a = random_acts(50, n_cols);
        for (size_t ri = 0; ri < sizeof rows / sizeof *rows; ri++) {
            int m = rows[ri], from = m == 48 ? 2 : (int)ri % 3;
            guarded y = guard((size_t)m * 64), z = guard((size_t)m * 64);
            memset(y.p, 0xee, (size_t)m * 64), memset(z.p, 0x11, (size_t)m * 64);
            k->fn.linear((float *)(void *)y.p, panel.p, &a.act, from, m, n_cols);
            ref->fn.linear((float *)(void *)z.p, panel.p, &a.act, from, m, n_cols);
            if (memcmp(y.p, z.p, (size_t)m * 64)) same = false;
            for (int r = 0; r < m; r++) {
                float one[16];
                k->fn.linear(one, panel.p, &a.act, from + r, 1, n_cols);
                if (memcmp(one, y.p + r * 64, 64)) alone = false;
            }
            unguard(y), unguard(z);
        }
        /* against float64 on what the kernel was given */
        float tile[16], *w = malloc((size_t)n_cols * 4);
        k->fn.linear(tile, panel.p, &a.act, 7, 1, n_cols);
        for (int lane = 0; lane < 16; lane++) {
            dequant->fn.dequant(w, file + (size_t)lane * ig_fmt_row_bytes(k->fmt, n_cols), n_cols);
            double sum = 0, mass = 0;
            for (int i = 0; i < n_cols; i++) {
                double x = (double)a.f[7 * n_cols + i];
                int block = 7 * (n_cols / 32) + i / 32;
                if (k->fmt->act == IG_ACT_Q8)
                    x = (double)a.act.q[7 * n_cols + i] * (double)a.act.scale[block];
                if (k->fmt->act == IG_ACT_Q16)
                    x = (double)a.act.q16[7 * n_cols + i] * (double)a.act.scale16[block];
                /* code * scale and minimum may cancel, so a weight counts as the largest of its block */
                double top = 0;
                for (int j = i / 32 * 32; j < i / 32 * 32 + 32 && j < n_cols; j++)
                    top = fmax(top, fabs((double)w[j]));
                sum += x * (double)w[i], mass += fabs(x * top);
            }
            const double part = k->fmt->rounds ? 0.05 : 4e-6;
            if (k->fmt->rounds && kind == WILD) continue; /* f16 ends at 65504 and at 6e-8 */
            if (fabs((double)tile[lane] - sum) > mass * part + 1e-30) near = false;
        }
        /* one activation changed by one step must show, where no weight is 0 and none swallows it */
        float broken[16];
        if (a.act.q)
            a.act.q[7 * n_cols + 5] = (int8_t)(a.act.q[7 * n_cols + 5] ^ 1), a.act.qsum[7 * (n_cols / 16)]++,
                                 a.act.q16[7 * n_cols + 5] = (int16_t)(a.act.q16[7 * n_cols + 5] ^ 64);
        a.f[7 * n_cols + 5] += 1.0f;
        k->fn.linear(broken, panel.p, &a.act, 7, 1, n_cols);
        if (kind == ORDINARY && !memcmp(broken, tile, sizeof tile)) notices = false;
        free(w), free(file), free_acts(a), unguard(panel);
    }
    result(same, k->name, "bits differ from the scalar kernel");
    result(alone, k->name, "a row in company differs from the row alone");
    result(near, k->name, "differs from float64 by more than rounding");
    result(notices, k->name, "the comparison does not notice a changed input");
}

static void check_rows_of_format(const ig_kern *k) {
    bool same = true, agrees = true;
    static const int cols[] = {32, 64, 96, 128, 480, 768, 832, 1536, 256, 640};
    for (size_t ci = 0; ci < sizeof cols / sizeof *cols; ci++) {
        int n = cols[ci];
        if (n % k->fmt->group || n % k->fmt->panel_group) continue;
        uint8_t *file = malloc(ig_fmt_row_bytes(k->fmt, n) * IG_PANEL_ROWS);
        guarded panel = random_panel(k->fmt, n, file, ci % 2 ? WILD : ORDINARY);
        guarded y = guard((size_t)n * 4), z = guard((size_t)n * 4);
        for (int lane = 0; lane < 16; lane++) {
            const uint8_t *row = file + (size_t)lane * ig_fmt_row_bytes(k->fmt, n);
            float *a = (float *)(void *)y.p, *b = (float *)(void *)z.p;
            if (k->op == IG_KERN_DEQUANT) {
                k->fn.dequant(a, row, n);
                ig_kern_reference(IG_KERN_DEQUANT, k->fmt)->fn.dequant(b, row, n);
            } else {
                k->fn.unpack(a, panel.p, lane, n);
                ig_kern_reference(IG_KERN_UNPACK, k->fmt)->fn.unpack(b, panel.p, lane, n);
            }
            if (memcmp(a, b, (size_t)n * 4)) same = false;
            ig_kern_reference(IG_KERN_DEQUANT, k->fmt)->fn.dequant(b, row, n);
            if (memcmp(a, b, (size_t)n * 4)) agrees = false;
        }
        unguard(panel), unguard(y), unguard(z), free(file);
    }
    result(same, k->name, "bits differ from the scalar kernel");
    result(agrees, k->name, "the panel does not give back the row of the file");
}

/* What the format's own library reads from a row, through the file layout and through a panel. */
static void check_golden(const ig_kern *k) {
    bool ok = k->fmt->act == IG_ACT_F32, notices = true; /* the float formats have no library to ask */
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const struct golden *g = &goldens[i];
        if (strcmp(g->fmt, k->fmt->name) != 0) continue;
        const uint8_t *row = (const uint8_t *)g->row;
        guarded panel = guard(ig_fmt_panel_bytes(k->fmt, g->n_cols)), y = guard((size_t)g->n_cols * 4);
        float *out = (float *)(void *)y.p;
        ok = ig_fmt_row_bytes(k->fmt, g->n_cols) == (size_t)g->n_bytes;
        for (int lane = 0; ok && lane < IG_PANEL_ROWS; lane++) {
            k->fmt->pack(panel.p, row, lane, g->n_cols);
            if (k->op == IG_KERN_DEQUANT)
                k->fn.dequant(out, row, g->n_cols);
            else
                k->fn.unpack(out, panel.p, lane, g->n_cols);
            ok = memcmp(out, g->f32, (size_t)g->n_cols * 4) == 0;
        }
        uint8_t *broken = malloc((size_t)g->n_bytes); /* one bit must show */
        memcpy(broken, row, (size_t)g->n_bytes);
        broken[g->n_bytes / 4] ^= 1;
        k->fmt->pack(panel.p, broken, 0, g->n_cols);
        if (k->op == IG_KERN_DEQUANT)
            k->fn.dequant(out, broken, g->n_cols);
        else
            k->fn.unpack(out, panel.p, 0, g->n_cols);
        notices = memcmp(out, g->f32, (size_t)g->n_cols * 4) != 0;
        free(broken), unguard(panel), unguard(y);
    }
    result(ok, k->name, "differs from the format's own library");
    result(notices, k->name, "the comparison with the library does not notice a changed code");
}

/* Numbers that find mistakes: zeros, denormals, huge ones, infinities and NaN now and then. */
static float nasty(int kind) {
    static const float list[] = {0.0f,  -0.0f,  1e-40f,  -1e-40f, 3e38f,    -3e38f,   1e-20f,
                                 88.5f, -88.5f, -87.31f, 0.5f,    65504.0f, 65520.0f, 5.9e-8f};
    uint32_t r = rnd() % 64;
    if (kind == 2 && r == 0) return INFINITY;
    if (kind == 2 && r == 1) return NAN;
    if (kind >= 1 && r < 16) return list[rnd() % (sizeof list / sizeof *list)];
    return bell() * 4.0f;
}

static bool equal_or_nan(const float *a, const float *b, int n) {
    for (int i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* ---- training ---------------------------------------------------------------------------------------- */

static void check_matmul(const ig_kern *k) {
    const ig_kern *ref = ig_kern_reference(IG_KERN_MATMUL, NULL);
    bool same = true, cut = true, near = true, notices = true;
    for (int round = 0; round < 400; round++) {
        int m = 1 + (int)(rnd() % 20), n = 1 + (int)(rnd() % 70), kk = 1 + (int)(rnd() % 130);
        const bool turned = round % 2, add = round % 3 == 0;
        size_t c_row = (size_t)n + rnd() % 3, b_row = (size_t)n + rnd() % 5;
        size_t a_row = turned ? 1 : (size_t)kk + 3, a_k = turned ? (size_t)m + 2 : 1;
        guarded a = guard(((size_t)(m - 1) * a_row + (size_t)(kk - 1) * a_k + 1) * 4),
                b = guard(((size_t)(kk - 1) * b_row + (size_t)n) * 4);
        const size_t c_n = (size_t)(m - 1) * c_row + (size_t)n;
        guarded y = guard(c_n * 4), z = guard(c_n * 4);
        float *fa = (float *)(void *)a.p, *fb = (float *)(void *)b.p, *fy = (float *)(void *)y.p;
        float *fz = (float *)(void *)z.p;
        for (size_t i = 0; i < (size_t)(m - 1) * a_row + (size_t)(kk - 1) * a_k + 1; i++) fa[i] = bell();
        for (size_t i = 0; i < (size_t)(kk - 1) * b_row + (size_t)n; i++) fb[i] = bell();
        for (size_t i = 0; i < c_n; i++) fy[i] = fz[i] = bell();
        const int i = (int)(rnd() % (uint32_t)m), j = (int)(rnd() % (uint32_t)n);
        const float before = fy[(size_t)i * c_row + (size_t)j];
        ig_matmul_args g = {fy, fa, fb, c_row, a_row, a_k, b_row, m, n, kk, add};
        k->fn.matmul(&g);
        g.c = fz, ref->fn.matmul(&g);
        if (memcmp(y.p, z.p, c_n * 4)) same = false;
        double sum = add ? (double)before : 0, mass = fabs((double)before);
        for (int c = 0; c < kk; c++) {
            double t =
                (double)fa[(size_t)i * a_row + (size_t)c * a_k] * (double)fb[(size_t)c * b_row + (size_t)j];
            sum += t, mass += fabs(t);
        }
        if (fabs(sum - (double)fy[(size_t)i * c_row + (size_t)j]) > mass * 4e-6) near = false;
        if (!add && kk > 1) { /* two calls over halves of k give the same bits */
            g.kk = kk / 2, k->fn.matmul(&g);
            g.a += (size_t)g.kk * a_k, g.b += (size_t)g.kk * b_row, g.kk = kk - g.kk, g.add = true;
            k->fn.matmul(&g);
            if (memcmp(y.p, z.p, c_n * 4)) cut = false;
            fb[(size_t)(kk - 1) * b_row + (size_t)(n - 1)] += 1.0f;
            k->fn.matmul(&g);
            if (!memcmp(y.p, z.p, c_n * 4)) notices = false;
        }
        unguard(a), unguard(b), unguard(y), unguard(z);
    }
    result(same, k->name, "bits differ from the scalar kernel");
    result(cut, k->name, "a sum cut in two differs");
    result(near, k->name, "differs from float64 by more than rounding");
    result(notices, k->name, "the comparison does not notice a changed input");
}

static void check_row(const ig_kern *k) {
    const ig_kern *ref = ig_kern_reference(k->op, k->fmt);
    bool same = true;
    for (int round = 0; round < 600; round++) {
        int n = 1 + (int)(rnd() % 200), kind = round % 3;
        const bool quants = k->op == IG_KERN_QUANT || k->op == IG_KERN_QUANT16;
        if (quants) n = 32 * (1 + n % 20);
        if (k->op == IG_KERN_ROPE || k->op == IG_KERN_ROPE_BACK || k->op == IG_KERN_SOFTMAX_BACK)
            n = 8 * (1 + n % 16);
        float *x = malloc((size_t)n * 8), *w = malloc((size_t)n * 8);
        for (int i = 0; i < 2 * n; i++) x[i] = nasty(kind), w[i] = nasty(kind == 2);
        size_t bytes = k->op == IG_KERN_TO_F16 ? (size_t)n * 2 : (size_t)n * 8;
        guarded y = guard(bytes), z = guard(bytes);
        memset(y.p, 0, bytes), memset(z.p, 0, bytes);
        if (!run_row(k, y.p, x, w, n) || !run_row(ref, z.p, x, w, n)) same = false; /* nobody checks it */
        if (k->op == IG_KERN_TO_F16 || k->op == IG_KERN_TO_KV8 || quants) {
            if ((kind < 2 || k->op == IG_KERN_TO_KV8) && memcmp(y.p, z.p, bytes)) same = false;
            if (quants && !equal_or_nan((float *)(void *)y.p + n, (float *)(void *)z.p + n, n / 32))
                same = false;
        } else if (!equal_or_nan((float *)(void *)y.p, (float *)(void *)z.p, (int)(bytes / 4)))
            same = false;
        unguard(y), unguard(z), free(x), free(w);
    }
    result(same, k->name, "bits differ from the scalar kernel");
}

static void check_argmax(const ig_kern *k) {
    bool ok = true;
    for (int round = 0; round < 300; round++) {
        int n = 1 + (int)(rnd() % 300), want = 0;
        float *x = malloc((size_t)n * 4);
        for (int i = 0; i < n; i++) x[i] = (float)(int)(rnd() % 40) - 20.0f - (round % 4 == 0 ? 1e9f : 0.0f);
        if (round % 5 == 0) x[rnd() % (uint32_t)n] = -INFINITY;
        for (int i = 1; i < n; i++)
            if (x[i] > x[want]) want = i;
        if (k->fn.argmax(x, n) != want) ok = false;
        x[rnd() % (uint32_t)n] = round & 1 ? NAN : INFINITY;
        if (k->fn.argmax(x, n) != -1) ok = false;
        free(x);
    }
    result(ok, k->name, "wrong index, or a broken row was not noticed");
}

/* Value i of a part, whose scale is number `group` of those of the position. */
static double kept_value(keys k, const uint8_t *part, size_t i, int group, int at) {
    if (k.kind == IG_KV_F32) return (double)((const float *)(const void *)part)[i];
    if (k.kind == IG_KV_F16) return (double)ig_f16_to_f32(((const uint16_t *)(const void *)part)[i]);
    if (k.kind == IG_KV_BF16) return (double)ig_bf16_to_f32(((const uint16_t *)(const void *)part)[i]);
    return (double)((const int8_t *)part)[i] * (double)ig_kv_scale(ig_kv_scales(part, k.n_d)[group * 64 + at]);
}
static double key_at(keys k, int key, int d) {
    return kept_value(k, k.block[key / 64], (size_t)(d * 64 + key % 64), d % (k.n_d / 2) / 8, key % 64);
}
static double value_at(keys k, int key, int d) {
    const uint8_t *part = (const uint8_t *)k.block[key / 64] + ig_kv_part_bytes(k.kind, k.n_d);
    return kept_value(k, part, (size_t)(key % 64 * k.n_d + d), d / IG_KV_GROUP, key % 64);
}
/* One query in double: out[n_out] and the log of the softmax's sum. */
static double attention64(double *out, int n_out, const float *q, int pos, int window, double cap, int n_d,
                          keys kv) {
    int from = window > 0 && pos >= window ? pos - window + 1 : 0;
    double top = -1e30, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int key = from; key <= pos; key++) {
            double sc = 0;
            for (int c = 0; c < n_d; c++)
                sc += (double)q[c] * key_at(kv, key, c);
            if (cap > 0) sc = cap * tanh(sc / cap);
            if (pass == 0) {
                top = sc > top ? sc : top;
                continue;
            }
            sum += exp(sc - top);
            for (int d = 0; d < n_out; d++)
                out[d] += exp(sc - top) * value_at(kv, key, d);
        }
    for (int d = 0; d < n_out; d++) out[d] /= sum;
    return top + log(sum);
}

static void check_attention(const ig_kern *k) {
    const ig_kern *ref = ig_kern_reference(IG_KERN_ATTENTION, NULL);
    bool same = true, alone = true, near = true, sees = true, apart = true;
    int n_joined = 0;
    for (int round = 0; round < 80; round++) {
        int n_d = 16 * (1 + (int)(rnd() % 8)), n_q = 1 + (int)(rnd() % IG_ATTENTION_QUERIES_MAX), start = (int)(rnd() % 300);
        if (round % 7 == 4) n_q = 1 + (int)(rnd() % 3); /* of 8 bits, as a decode has them */
        if (round % 10 == 9) start += 1000 + (int)(rnd() % 1200); /* beyond a span of 1024 */
        if (round % 20 == 7) n_d = 256;
        const int window = round % 3 ? 0 : 1 + (int)(rnd() % (round % 2 ? 40 : 700));
        const float cap = round % 5 == 1 ? 0.3f + 6.0f * fabsf(bell()) : 0.0f; /* some saturate */
        static const ig_kv_kind kinds[] = {IG_KV_F16, IG_KV_8, IG_KV_F32, IG_KV_F16, IG_KV_8, IG_KV_8, IG_KV_F32};
        keys kv = random_keys((start + n_q) / 64 + 1, n_d, kinds[round % 7]);
        int *pos = malloc((size_t)n_q * sizeof *pos);
        for (int i = 0; i < n_q; i++) pos[i] = start + (round % 2 ? i : i / 3);
        size_t n = (size_t)n_q * (size_t)n_d;
        float *q = malloc(n * 4), lse[IG_ATTENTION_QUERIES_MAX], lse_ref[IG_ATTENTION_QUERIES_MAX], lse_one;
        for (size_t i = 0; i < n; i++) q[i] = bell() * 0.7f;
        guarded y = guard(n * 4), z = guard(n * 4), s = guard(ig_attention_scratch_floats(n_q, n_d, 0) * 4);
        ig_attention_args a = {.out = (float *)(void *)y.p,
                               .q = q,
                               .pos = pos,
                               .n_q = n_q,
                               .head_dim = n_d,
                               .window = window,
                               .softcap = cap,
                               .kind = kv.kind,
                               .block = kv.block,
                               .lse = lse,
                               .scratch = (float *)(void *)s.p};
        k->fn.attention(&a);
        a.out = (float *)(void *)z.p, a.lse = lse_ref;
        ref->fn.attention(&a);
        if (memcmp(y.p, z.p, n * 4) || memcmp(lse, lse_ref, (size_t)n_q * 4)) same = false;
        int i = (int)(rnd() % (uint32_t)n_q);
        ig_attention_args one = a;
        one.q = q + (size_t)i * (size_t)n_d, one.pos = pos + i, one.n_q = 1, one.lse = &lse_one;
        k->fn.attention(&one);
        if (memcmp(z.p, y.p + (size_t)i * (size_t)n_d * 4, (size_t)n_d * 4) || lse_one != lse[i]) alone = false;
        /* spans apart, joined: the same bits as the whole */
        const int first = window > 0 && pos[i] >= window ? (pos[i] - window + 1) / 1024 : 0, last = pos[i] / 1024;
        float *parts = aligned_alloc(64, (size_t)(last + 1) * 2048), pm[8], pl[8];
        ig_attention_args part = one;
        part.lse = NULL;
        for (part.span = first; part.span <= last; part.span++) {
            part.m = pm + part.span, part.l = pl + part.span;
            part.out = parts + part.span * 512;
            k->fn.attention(&part);
        }
        ig_kern_pick(IG_KERN_ATTENTION_JOIN, NULL, IG_TIER_L3, k->cpu_needs)
            ->fn.attention_join(&(ig_attention_join_args){(float *)(void *)z.p, parts + first * 512, pm + first, pl + first,
                                                          512, 1, last - first + 1, n_d});
        if (memcmp(z.p, y.p + (size_t)i * (size_t)n_d * 4, (size_t)n_d * 4)) apart = false;
        n_joined += last > first;
        free(parts);
        double o[3] = {0}, l = attention64(o, 3, q + i * n_d, pos[i], window, (double)cap, n_d, kv);
        for (int d = 0; d < 3; d++)
            if (fabs(o[d] - (double)((float *)(void *)y.p)[(size_t)i * (size_t)n_d + (size_t)d]) > 3e-5)
                near = false;
        if (fabs(l - (double)lse[i]) > 1e-4) near = false;
        if (window > 0 && pos[i] >= window) { /* a block out of the window is not read, a key of it not seen */
            one.out = (float *)(void *)z.p;
            int from = pos[i] - window + 1;
            for (int b = 0; b < from / 64; b++) kv.block[b] = NULL;
            size_t at = (size_t)(64 * n_d + (from % 64 - 1) * n_d); /* the value just before the window */
            if (from % 64 > 0 && kv.kind == IG_KV_F32) ((float *)(void *)(uintptr_t)kv.block[from / 64])[at] = 1e6f;
            k->fn.attention(&one);
            if (memcmp(z.p, y.p + (size_t)i * (size_t)n_d * 4, (size_t)n_d * 4)) sees = false;
        }
        unguard(y), unguard(z), unguard(s), free(q), free(pos), free(kv.mem), free(kv.block);
    }
    result(sees, k->name, "a key outside the window changes the result");
    result(apart && n_joined > 2, k->name, "spans computed apart give other bits");
    result(same, k->name, "bits differ from the scalar kernel");
    result(alone, k->name, "a query in company differs from the query alone");
    result(near, k->name, "differs from float64 by more than rounding");
}

/* ---- tier l1 ------------------------------------------------------------------------------------------ */

static void put_value(keys k, int key, int d, float x) {
    const uint16_t h = k.kind == IG_KV_BF16 ? ig_f32_to_bf16(x) : ig_f32_to_f16(x);
    uint8_t *part = (uint8_t *)(uintptr_t)k.block[key / 64] + ig_kv_part_bytes(k.kind, k.n_d);
    memcpy(part + 2 * ((size_t)(key % 64) * (size_t)k.n_d + (size_t)d), &h, sizeof h);
}
/* One query by the text of docs/numerics.md, key after key; `order` lists the n keys in the order of the sums. */
static void attention_by_text(float *out, const float *q, const int *order, int n, const ig_attention_args *a,
                              const ig_fmt *number, keys kv) {
    float *s = malloc((size_t)n * sizeof *s), max = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n; i++) {
        float acc = 0.0f;
        for (int d = 0; d < kv.n_d; d++) acc += q[d] * (float)key_at(kv, order[i], d);
        s[i] = ig_number_round(number, acc);
        if (a->softcap > 0.0f) {
            const float t = ig_mlx_tanh(ig_number_round(number, s[i] / a->softcap));
            s[i] = ig_number_round(number, ig_number_round(number, t) * a->softcap);
        }
        max = s[i] > max ? s[i] : max;
    }
    for (int i = 0; i < n; i++) s[i] = ig_mlx_exp(s[i] - max), sum += s[i];
    for (int i = 0; i < n; i++) s[i] = ig_number_round(number, s[i] * (1.0f / sum));
    for (int d = 0; d < kv.n_d; d++) {
        float acc = 0.0f;
        for (int i = 0; i < n; i++) acc += s[i] * (float)value_at(kv, order[i], d);
        out[d] = ig_number_round(number, acc);
    }
    free(s);
}

/* The keys of position pos in their order; gives how many. */
static int order_of_keys(int *order, const ig_attention_args *a, int pos) {
    const int from = a->window > 0 && pos >= a->window ? pos - a->window + 1 : 0;
    int n = 0;
    for (int i = from; i <= pos; i++) order[n++] = i;
    if (!a->in_ring) return n;
    const int begin = a->ring_from > a->window ? a->ring_from : 0;
    for (int i = from; i <= pos; i++) order[(i - begin + a->window) % a->window] = i; /* the slot that it was put in */
    return n;
}

static void check_attention_rounded(const ig_kern *k) {
    const ig_fmt *number = k->fmt;
    bool same = true, alone = true, notices = true;
    int n_rings = 0, n_others = 0;
    for (int round = 0; round < 60; round++) {
        const int n_d = round % 20 == 7 ? 256 : 16 * (1 + (int)(rnd() % 8)), start = (int)(rnd() % 300);
        const bool in_ring = round % 3 == 2;
        const int n_q = in_ring ? 1 + (int)(rnd() % 8) : 1 + (int)(rnd() % 24);
        const int window = in_ring || round % 5 == 1 ? 1 + (int)(rnd() % (uint32_t)(start + 1)) : 0;
        keys kv = random_keys((start + n_q) / 64 + 1, n_d, number == &ig_fmt_bf16 ? IG_KV_BF16 : IG_KV_F16);
        int pos[24], *order = malloc((size_t)(start + n_q) * sizeof *order);
        for (int i = 0; i < n_q; i++) pos[i] = in_ring ? start : start + i / 2;
        const size_t n = (size_t)n_q * (size_t)n_d;
        float *q = malloc(n * 4), *want = malloc((size_t)n_d * 4);
        for (size_t i = 0; i < n; i++) q[i] = ig_number_round(number, bell() * 0.7f);
        const int n_keys = ((start + n_q) / 64 + 1) * 64;
        guarded y = guard(n * 4), z = guard((size_t)n_d * 4), s = guard(ig_attention_scratch_floats(n_q, n_d, n_keys) * 4);
        ig_attention_args a = {.out = (float *)(void *)y.p, .q = q, .pos = pos, .n_q = n_q, .head_dim = n_d,
                               .window = window, .softcap = round % 4 == 1 ? 2.5f : 0.0f, .kind = kv.kind,
                               .block = kv.block, .in_ring = in_ring,
                               .ring_from = in_ring ? (int)(rnd() % (uint32_t)(start + 1)) : 0,
                               .scratch = (float *)(void *)s.p};
        k->fn.attention(&a);
        for (int i = 0; i < n_q; i++) {
            const int n_seen = order_of_keys(order, &a, pos[i]);
            attention_by_text(want, q + i * n_d, order, n_seen, &a, number, kv);
            if (memcmp(want, a.out + i * n_d, (size_t)n_d * 4)) same = false;
        }
        ig_attention_args one = a; /* without the others */
        one.out = (float *)(void *)z.p, one.q = q + n - (size_t)n_d, one.pos = pos + n_q - 1, one.n_q = 1;
        k->fn.attention(&one);
        if (memcmp(z.p, a.out + n - (size_t)n_d, (size_t)n_d * 4)) alone = false;
        if (in_ring && window > 3 && (start - (a.ring_from > window ? a.ring_from : 0)) % window < window - 3) {
            /* equal weights; of the values a large one, its negative and then a 1 that the ring puts before them */
            const int large[] = {start - window + 1, start - window + 2};
            for (int b = 0; b <= start / 64; b++) memset(kv.mem + (size_t)(2 * b + 1) * 128 * (size_t)n_d, 0, 128 * (size_t)n_d);
            for (int d = 0; d < n_d; d++) {
                put_value(kv, large[0], d, 32768.0f), put_value(kv, large[1], d, -32768.0f);
                put_value(kv, start, d, 0x1p-10f), q[n - (size_t)n_d + (size_t)d] = 0.0f;
            }
            k->fn.attention(&one);
            memcpy(want, z.p, (size_t)n_d * 4);
            one.in_ring = false;
            k->fn.attention(&one);
            n_rings++, n_others += memcmp(z.p, want, (size_t)n_d * 4) != 0;
        }
        unguard(y), unguard(z), unguard(s), free(q), free(want), free(order), free(kv.mem), free(kv.block);
    }
    notices = n_rings > 3 && n_others == n_rings;
    result(same, k->name, "differs from the definition, key after key");
    result(alone, k->name, "a query in company differs from the query alone");
    result(notices, k->name, "the order of a ring makes no difference");
}

/* ---- tier l2 ------------------------------------------------------------------------------------------ */

/* The forms over what came back from groups, against their definition key after key (kv_affine.h). The numbers in the
 * first half of each part are others, and must not be read. */
static void check_attention_forms(const ig_kern *k) {
    static const int widths[] = {2, 4, 8, 3}, groups[] = {32, 64};
    const ig_fmt *number = k->fmt;
    const bool is_bf16 = number == &ig_fmt_bf16;
    bool same = true, differ = false;
    for (int round = 0; round < 24; round++) {
        const bool tiled = round % 2, in_ring = round % 3 == 2;
        const int n_d = 64 << round % 2, n_q = 1 + (int)(rnd() % 4), pos = round % 4 == 3 ? 700 + (int)(rnd() % 500) : (int)(rnd() % 400);
        const int window = in_ring ? 1 + (int)(rnd() % (uint32_t)(pos + 1)) : 0, n = in_ring ? window : pos + 1;
        const ig_kv_affine f = {widths[round / 2 % 4], groups[round % 2], is_bf16 ? IG_KV_AFFINE_BF16 : IG_KV_AFFINE_F16};
        const ig_kv_kind kind = is_bf16 ? IG_KV_BF16_TWICE : IG_KV_F16_TWICE;
        const size_t part = ig_kv_part_bytes(kind, n_d), n_groups = (size_t)(n * n_d / f.group);
        const int n_blocks = pos / 64 + 1;
        uint8_t *mem = malloc(2 * (size_t)n_blocks * part);
        const void **block = malloc((size_t)n_blocks * sizeof *block);
        ig_kv_affine_rows rows[2];
        int all[4] = {pos, pos, pos, pos}, *order = malloc((size_t)n * sizeof *order);
        const size_t floats = ig_attention_scratch_floats(n_q, n_d, n_blocks * 64);
        guarded y = guard((size_t)(n_q * n_d) * 4), s = guard(floats * 4);
        float *q = malloc((size_t)(n_q * n_d) * 4), *want = malloc((size_t)(n_q * n_d) * 4), *x = malloc((size_t)n_d * 4);
        float *work = malloc(ig_attention_affine_floats(n, n_d) * 4);
        for (size_t i = 0; i < 2 * (size_t)n_blocks * part; i++) mem[i] = (uint8_t)(rnd() & 0x3f); /* finite */
        for (int b = 0; b < n_blocks; b++) block[b] = mem + 2 * (size_t)b * part;
        for (int i = 0; i < n_q * n_d; i++) q[i] = ig_number_round(number, bell() * 0.5f);
        ig_attention_args a = {.out = (float *)(void *)y.p, .q = q, .pos = all, .n_q = n_q, .head_dim = n_d, .window = window,
                               .kind = kind, .block = block, .in_ring = in_ring,
                               .ring_from = in_ring ? (int)(rnd() % (uint32_t)(pos + 1)) : 0,
                               .form = tiled ? IG_ATTENTION_TILED : IG_ATTENTION_ROUNDED, .scratch = (float *)(void *)s.p};
        const int n_seen = order_of_keys(order, &a, pos);
        for (int v = 0; v < 2; v++) {
            rows[v] = (ig_kv_affine_rows){malloc((size_t)n * (size_t)(n_d * f.bits / 8)), malloc(n_groups * 2), malloc(n_groups * 2)};
            for (int i = 0; i < n_seen; i++) { /* row i of the definition is the i-th key in the order of the sums */
                for (int d = 0; d < n_d; d++) x[d] = ig_number_round(number, bell());
                ig_kv_affine_quant(&f, rows[v], i, x, n_d), ig_kv_affine_dequant(&f, rows[v], i, x, n_d);
                uint16_t *to = (uint16_t *)(void *)((uint8_t *)(uintptr_t)block[order[i] / 64] + (size_t)v * part + part / 2);
                for (int d = 0; d < n_d; d++)
                    to[v ? order[i] % 64 * n_d + d : d * 64 + order[i] % 64] = is_bf16 ? ig_f32_to_bf16(x[d]) : ig_f32_to_f16(x[d]);
            }
        }
        k->fn.attention(&a);
        ig_attention_affine_args def = {.fmt = &f, .k = rows[0], .v = rows[1], .q = q, .out = want, .q_row = (size_t)n_d,
                                        .out_row = (size_t)n_d, .n_q = n_q, .n_keys = n_seen, .head_dim = n_d, .scale = 1.0f,
                                        .scratch = work};
        (tiled ? ig_attention_affine_tiled : ig_attention_affine)(&def);
        if (memcmp(want, a.out, (size_t)(n_q * n_d) * 4)) same = false;
        (tiled ? ig_attention_affine : ig_attention_affine_tiled)(&def); /* the control: the other form */
        if (memcmp(want, a.out, (size_t)(n_q * n_d) * 4)) differ = true;
        for (int v = 0; v < 2; v++) free(rows[v].code), free(rows[v].scale), free(rows[v].bias);
        unguard(y), unguard(s), free(q), free(want), free(x), free(work), free(mem), free(block), free(order);
    }
    result(same, k->name, "over groups: differs from the definition, key after key");
    result(differ, k->name, "over groups: the two forms are one");
}

/* Kernels of numbers against the scalar functions they are made of, and those against the C library. */
static void check_mlx_math(void) {
    bool lg = true, th = true, cube = true, gelu_half = true, notices = false;
    for (int i = 0; i < 400000; i++) {
        const uint32_t u = rnd() & 0x7fffffffu;
        float x;
        memcpy(&x, &u, sizeof x);
        const float y = ig_mlx_log(x), want = logf(x);
        if (memcmp(&y, &want, sizeof y) && !(isnan(y) && isnan(want))) lg = false;
        const float t = uniform() * 12.0f;
        if (fabs((double)ig_mlx_tanh(t) - tanh((double)t)) > 6.1e-8 * fabs(tanh((double)t))) th = false;
        if ((float)log((double)x) != want && !isnan(want)) notices = true; /* the library's is no rounded log */
    }
    for (uint32_t h = 0; h < 65536; h++) { /* gelu of x and its mirror: gelu(x) - x = gelu(-x), nearly */
        for (int half = 0; half < 2; half++) {
            const ig_fmt *n = half ? &ig_fmt_f16 : &ig_fmt_bf16;
            const float x = half ? ig_f16_to_f32((uint16_t)h) : ig_bf16_to_f32((uint16_t)h);
            const uint16_t g = ig_mlx_gelu(n)[h];
            const double y = (double)(half ? ig_f16_to_f32(g) : ig_bf16_to_f32(g)), z = (double)x;
            if (!(fabsf(x) < 100.0f)) continue;
            const double want = 0.5 * z * (1 + tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
            if (fabs(y - want) > (half ? 6e-3 : 5e-2) * fabs(z) + 1e-7) gelu_half = false;
            if (ig_number_round(n, x) != x) cube = false;
        }
    }
    result(lg && notices, "ig_mlx_log", "differs from the C library's logf");
    result(th, "ig_mlx_tanh", "differs from tanh by more than a rounding");
    result(gelu_half, "ig_mlx_gelu", "is not near gelu");
    result(cube, "ig_number_round", "changes a number");
}

static void check_scalar_math(void) {
    bool half = true, ex = true, lg = true, trig = true, e32 = true, th = true;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = ig_f16_to_f32((uint16_t)h);
        if (isnan(f) ? !isnan(ig_f16_to_f32(ig_f32_to_f16(f))) : ig_f32_to_f16(f) != h) half = false;
        if (h < 0x7bff) { /* between two neighbours: nearest, ties to even */
            double a = (double)f, b = (double)ig_f16_to_f32((uint16_t)(h + 1)), mid = (a + b) / 2;
            if (ig_f32_to_f16((float)mid) != ((h & 1) ? h + 1 : h)) half = false;
            if (ig_f32_to_f16(nextafterf((float)mid, 1e9f)) != h + 1) half = false;
            if (ig_f32_to_f16(nextafterf((float)mid, -1e9f)) != h) half = false;
        }
    }
    for (int i = 0; i < 20000; i++) {
        double x = (double)uniform() * 600.0, y = exp((double)uniform() * 200.0), t = (double)uniform() * 2e5,
               s, c;
        if (fabs(ig_math_exp(x) / exp(x) - 1) > 2e-14) ex = false;
        if (fabs(ig_math_log(y) - log(y)) > 4e-16 * (fabs(log(y)) + 1)) lg = false;
        ig_math_sincos(t, &s, &c);
        if (fabs(s - sin(t)) > 1e-15 || fabs(c - cos(t)) > 1e-15) trig = false;
        float z = uniform() * 87.0f, o;
        ig_kern_reference(IG_KERN_EXP, NULL)->fn.exp(&o, &z, 1);
        if (fabs((double)o / exp((double)z) - 1) > 3e-7) e32 = false;
        float slope;
        z *= i % 2 ? 0.1f : 0.01f;
        ig_kern_reference(IG_KERN_SOFTCAP, NULL)->fn.softcap(&o, &slope, &z, 1.0f, 1);
        if (fabs((double)o - tanh((double)z)) > 2.4e-7 * fabs(tanh((double)z))) th = false;
        if (fabs((double)slope - 1 + tanh((double)z) * tanh((double)z)) > 2e-7) th = false;
    }
    result(half, "f16", "a conversion does not round to nearest even");
    result(ex, "ig_math_exp", "differs from libm by more than 2e-14");
    result(lg, "ig_math_log", "differs from libm by more than 4e-16");
    result(trig, "ig_math_sincos", "differs from libm by more than 1e-15");
    result(th, "softcap.scalar", "tanh differs from libm by more than 2 ulp");
    result(e32, "exp.scalar", "relative error above 3e-7");
}

/* What keys and values of 8 bits are off by, from tiny to huge; and what is not finite shows in the scale. */
static void check_kv8(void) {
    const ig_kern *k = ig_kern_reference(IG_KERN_TO_KV8, NULL);
    bool near = true, shows = true, notices = true;
    for (int round = 0; round < 4000; round++) {
        float x[IG_KV_GROUP], size = exp2f(uniform() * 22.0f - 10.0f), most = 0;
        int8_t q[IG_KV_GROUP];
        uint16_t scale;
        for (int i = 0; i < IG_KV_GROUP; i++) x[i] = round == 0 ? 0.0f : bell() * size, most = fmaxf(most, fabsf(x[i]));
        k->fn.to_kv8(q, &scale, x);
        const float d = ig_kv_scale(scale);
        if (scale != ig_f32_to_f16(64.0f * (most / 127.0f))) near = false;
        for (int i = 0; i < IG_KV_GROUP; i++) {
            const double off = fabs((double)d * q[i] - (double)x[i]), next = fabs((double)d * (q[i] + 1) - (double)x[i]);
            const bool cut = fabsf(x[i]) > 127.0f * d && d > 0.0f; /* the scale was rounded down */
            if (cut ? q[i] != (x[i] > 0 ? 127 : -127) : d > 0.0f && off > 0.50001 * (double)d) near = false;
            if (d == 0.0f && (q[i] != 0 || most > 6e-8f)) near = false;
            if (!cut && d > 0.0f && next < 0.49 * (double)d) notices = false; /* a code more is always further away */
        }
        x[round % IG_KV_GROUP] = round % 3 == 0 ? NAN : round % 3 == 1 ? -INFINITY : 1.4e5f;
        k->fn.to_kv8(q, &scale, x);
        for (int i = 0; i < IG_KV_GROUP; i++) shows = shows && q[i] == 0 && (scale & 0x7c00u) == 0x7c00u;
    }
    result(near, "to_kv8", "a value is off by more than half a step");
    result(notices, "to_kv8", "the bound does not notice a code that is one more");
    result(shows, "to_kv8", "what is not finite leaves a finite scale");
}

int main(void) {
    uint32_t cpu = ig_cpu_features();
    const ig_kern *k;
    int n_skipped = 0;
    const char *folder = getenv("INGLE_TEST_PROVEN");
    char path[4096];
    snprintf(path, sizeof path, "%s/check_kern.txt", folder ? folder : "");
    FILE *proven = folder ? fopen(path, "w") : NULL;
    if (folder && !proven) result(false, path, "cannot be written");
    for (int i = 0; (k = ig_kern_at(i)) != NULL; i++) {
        const int failed_before = n_failed;
        if (k->cpu_needs & ~cpu) {
            n_skipped++;
            printf("skip %s, because this CPU cannot run it\n", k->name);
            continue;
        }
        if (k->op == IG_KERN_LINEAR)
            check_linear(k);
        else if (k->op == IG_KERN_DEQUANT || k->op == IG_KERN_UNPACK)
            check_rows_of_format(k), check_golden(k);
        else if (k->op == IG_KERN_ATTENTION && k->fmt)
            check_attention_rounded(k), check_attention_forms(k);
        else if (k->op == IG_KERN_ATTENTION)
            check_attention(k);
        else if (k->op == IG_KERN_ATTENTION_JOIN)
            ; /* with each of the kernels whose parts it joins */
        else if (k->op == IG_KERN_ARGMAX)
            check_argmax(k);
        else if (k->op == IG_KERN_MATMUL)
            check_matmul(k);
        else
            check_row(k);
        if (n_failed == failed_before) note_proven(proven, k);
    }
    if (proven && fclose(proven) != 0) result(false, path, "cannot be written");
    check_scalar_math();
    check_mlx_math();
    check_kv8();
    for (int op = 0; op < IG_KERN_N_OPS; op++) /* every cell has its scalar definition */
        for (int i = 0; (k = ig_kern_at(i)) != NULL; i++)
            if ((int)k->op == op && !ig_kern_reference(k->op, k->fmt))
                result(false, k->name, "no scalar kernel");
    printf("check_kern: %d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed ? 1 : 0;
}
