# The only build file. The lists are the folders: adding a file is adding a feature, nothing is listed here.
# `make help` says what can be made. B is where everything goes; CC and CFLAGS work as usual.

ifeq ($(origin CC),default)
CC      := gcc
endif
B       ?= build
CFLAGS  ?=
PREFIX  ?= /usr/local
# The template engine and the sources fetched by the build; the sanitizer builds share those of the plain one.
D       ?= $(B)
# address, undefined, thread, fuzzer: for the check-* targets below, each in a B of its own.
SAN     ?=
# What programs for another machine are run with, and what Rust calls that machine: check-arm64 sets them.
EMU     ?=
TRIPLE  ?=

MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
Q := $(if $(V),,@)

# No contraction and no fast-math anywhere, and -m flags for kernel files only: a number's bits come from the
# source alone. Kernels get -O3.
WARN   := -std=gnu11 -Wall -Wextra -Werror -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla
BASE   := -g -ffp-contract=off -D_GNU_SOURCE -Isrc -I$(B)
SANF   := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer -Wno-error)
OPT    := $(if $(SAN),-O1,-O2)
OPT_K  := $(if $(SAN),-O1,-O3)

# ---- libraries --------------------------------------------------------------------------------------------

PKGS   := libmicrohttpd libpcre2-8 libutf8proc libxxhash libcurl libcrypto
LIBS   := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lutf8proc -lxxhash -lcurl -lcrypto -lpthread -lm -ldl
ifneq ($(shell pkg-config --exists $(PKGS) 2>/dev/null && echo yes),yes)
$(warning pkg-config does not find all of $(PKGS). ./run installs them; tools/packages.txt says why)
endif
# yyjson from the system when it has one, else its source, fetched and checked by tools/fetch.py.
ifeq ($(shell pkg-config --exists 'yyjson >= 0.8' 2>/dev/null && echo yes),yes)
LIBS   += $(shell pkg-config --libs yyjson)
else
YYJSON := $(D)/third/yyjson
BASE   += -isystem $(YYJSON)
endif
GUIDE  := $(D)/guide/$(if $(TRIPLE),$(TRIPLE)/)release/libguide.a
COMPILE = $(CC) $(WARN) $(BASE) $(SANF)

# ---- lists ------------------------------------------------------------------------------------------------

# LINK_<folder>: the folder and those below it. One source of truth for the check and for the linker.
include $(B)/gen/layers.mk
$(B)/gen/layers.mk: tools/layers.py
	@mkdir -p $(@D) && python3 $< --make > $@

# Kernel files fmt_*.c and loop_*.c are compiled once per header in kern/simd; tuned/<name>.<isa>.c once. A header
# that says `// tuned files only` has no vector of its own to compile the former for.
ARCH   := $(shell $(CC) -dumpmachine)
ISAS   := $(filter-out %_common,$(basename $(notdir $(wildcard src/kern/simd/*.h))))
ISAS   := $(filter-out $(if $(filter x86_64-%,$(ARCH)),,avx% sse% amx%) \
            $(if $(filter aarch64-%,$(ARCH)),,neon% sve%),$(ISAS))
$(foreach i,$(ISAS),$(eval FLAGS_$(i) := $(shell sed -n '1s,^// flags: *,,p' src/kern/simd/$(i).h)))
GENERIC := $(filter-out $(basename $(notdir $(shell grep -l '^// tuned files only' src/kern/simd/*.h))),$(ISAS))
K_SRC  := $(basename $(notdir $(filter-out %_test.c,$(wildcard src/kern/fmt_*.c src/kern/loop_*.c))))
TUNED  := $(foreach i,$(ISAS),$(basename $(notdir $(wildcard src/kern/tuned/*.$(i).c))))

FOLDERS := $(LINK_app)
TESTS   := $(foreach f,$(FOLDERS),$(if $(wildcard src/$(f)/*_test.c),$(f)))
# Files with a main of their own; the test runner's is base/test.c.
MAINS   := src/app/main.c src/base/test.c $(wildcard src/kern/check_*.c)

objects  = $(patsubst src/%.c,$(B)/%.o,$(1))
KERNELS := $(K_SRC:%=src/kern/%.c)
plain    = $(filter-out %_test.c $(MAINS) $(KERNELS),$(wildcard src/$(1)/*.c))
$(foreach f,$(FOLDERS),$(eval OBJ_$(f) := $(call objects,$(call plain,$(f)))))
K_OBJ   := $(foreach i,$(GENERIC),$(K_SRC:%=$(B)/kern/%.$(i).o)) $(TUNED:%=$(B)/kern/tuned/%.o)
OBJ_kern += $(K_OBJ)
OBJ_file += $(if $(YYJSON),$(B)/third/yyjson.o)
OBJ_text += $(GUIDE)
linked   = $(foreach f,$(LINK_$(1)),$(OBJ_$(f)))

# ---- what is made -----------------------------------------------------------------------------------------

TEST_PROGRAMS := $(TESTS:%=$(B)/test_%)
CHECK_KERN    := $(if $(wildcard src/kern/check_kern.c),$(B)/check_kern)
FUZZ          := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZERS       := $(FUZZ:%=$(B)/fuzz_%)
TORTURE       := $(B)/torture
RUN_TESTS      = $(foreach t,$(abspath $(TEST_PROGRAMS) $(CHECK_KERN)),'$(EMU) $(t)') \
                 $(foreach f,$(FUZZ),'$(EMU) $(abspath $(B))/fuzz_$(f) tests/fuzz/corpus-$(f)') \
                 $(if $(SAN)$(EMU),,'$(abspath $(TORTURE)) $(B)/tiny --sample')

.PHONY: all tests check check-full check-clang check-asan check-ubsan check-tsan check-arm64 check-wide \
        check-templates check-tokenizers check-kill check-torture check-tiers run-tests fuzz fuzz-run \
        bench bench-kern layers tidy install clean help FORCE
all: $(B)/ingle
tests: $(TEST_PROGRAMS) $(CHECK_KERN) $(B)/check_speed $(FUZZERS) $(if $(SAN)$(EMU),,$(TORTURE))

# Objects are given whole; libguide.a is the only archive.
LINK = $(Q)echo "  LD   $@"; \
       $(CC) $(SANF) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -Wl,--as-needed $(LIBS)
$(B)/ingle: $(B)/app/main.o $(call linked,app) $(B)/gen/sources
	$(LINK)
$(B)/check_kern $(B)/check_speed: $(B)/%: $(B)/kern/%.o $(call linked,kern) $(B)/gen/sources
	$(LINK)
# check_kern with the kernels of the wider instruction sets made out of AVX2 by a header of tests/wide: check-wide.
WIDE_OBJ := $(foreach i,$(filter-out $(GENERIC),$(ISAS)),$(filter %.$(i),$(TUNED)))
$(B)/check_wide: $(B)/kern/check_kern.o $(filter-out $(WIDE_OBJ:%=$(B)/kern/tuned/%.o),$(call linked,kern)) \
                 $(WIDE_OBJ:%=$(B)/wide/%.o) $(B)/gen/sources
	$(LINK)
define test_rule
$(B)/test_$(1): $(call objects,$(wildcard src/$(1)/*_test.c)) $(B)/base/test.o $(call linked,$(1)) \
                $(B)/gen/sources
	$$(LINK)
endef
$(foreach t,$(TESTS),$(eval $(call test_rule,$(t))))
# A fuzz target is linked with what it includes. Without the fuzzer its own main runs a corpus, as a test.
FUZZ_FLAGS := $(if $(findstring fuzzer,$(SAN)),-DIG_LIBFUZZER -fsanitize=fuzzer)
included = $(shell sed -n 's,^\#include "\([a-z]*\)/.*,\1,p' $(1))
fuzz_uses = $(sort $(foreach i,$(call included,tests/fuzz/fuzz_$(1).c),$(LINK_$(i))))
define fuzz_rule
$(B)/fuzz_$(1): tests/fuzz/fuzz_$(1).c $(wildcard tests/fuzz/*.h) $(B)/gen/flags \
                $(foreach f,$(call fuzz_uses,$(1)),$(OBJ_$(f)))
	$(Q)echo "  LD   $$@"; $(COMPILE) $(OPT) $(CFLAGS) $(FUZZ_FLAGS) -o $$@ $$< $$(filter %.o %.a,$$^) \
	  -Wl,--as-needed $(LIBS)
endef
$(foreach f,$(FUZZ),$(eval $(call fuzz_rule,$(f))))

# Everything but main, and fault.c, which makes malloc, read and their like fail: tests/torture/.
$(TORTURE): $(wildcard tests/torture/*.c tests/torture/*.h) $(B)/gen/flags $(call linked,app) $(B)/tiny/tiny.gguf
	$(Q)echo "  LD   $@"; $(COMPILE) $(OPT) $(CFLAGS) -rdynamic $(LDFLAGS) -o $@ $(filter %.c %.o %.a,$^) \
	  -Wl,--as-needed $(LIBS)
$(B)/tiny/tiny.gguf: tests/torture/make_tiny.py
	$(Q)mkdir -p $(@D) && python3 $< $(@D)

# ---- compiling --------------------------------------------------------------------------------------------

# $(1): flags. Each object also depends on the command line that made it.
compile = $(Q)mkdir -p $(@D); echo "  CC   $@"; $(COMPILE) $(1) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/%.o: src/%.c $(B)/gen/flags
	$(call compile,$(OPT))
# Nobody fuzzes a kernel, and clang takes minutes to instrument one.
k_flags = $(OPT_K) $(FLAGS_$(1)) -DIG_ISA=$(1) $(if $(findstring fuzzer,$(SAN)),-fno-sanitize=all)
define kern_rule
$(B)/kern/%.$(1).o: src/kern/%.c $(B)/gen/flags
	$$(call compile,$(call k_flags,$(1)))
$(B)/kern/tuned/%.$(1).o: src/kern/tuned/%.$(1).c $(B)/gen/flags
	$$(call compile,$(call k_flags,$(1)))
endef
$(foreach i,$(ISAS),$(eval $(call kern_rule,$(i))))
isa_of = $(lastword $(subst ., ,$(1)))
$(B)/wide/%.o: src/kern/tuned/%.c $(B)/gen/flags
	$(call compile,-O1 $(FLAGS_avx2) -include tests/wide/halves.h -DIG_ISA=$(call isa_of,$*))

# Headers that are made must be there before the first compile; after it the .d files know who needs them.
ifdef YYJSON
ABOVE_FILE := $(foreach f,$(FOLDERS),$(if $(filter file,$(LINK_$(f))),$(wildcard src/$(f)/*.c)))
$(call objects,$(ABOVE_FILE)): | $(YYJSON)/yyjson.h
endif
$(call objects,src/kern/registry.c src/kern/check_kern.c): | $(B)/gen/kern_list.h
$(call objects,$(wildcard src/app/*.c)): | $(B)/gen/node_list.h
$(call objects,$(wildcard src/model/*.c)): | $(B)/gen/family_list.h
$(call objects,$(wildcard src/serve/*.c)): | $(B)/gen/page.h
-include $(patsubst %.o,%.d,$(filter %.o,$(foreach f,$(FOLDERS),$(OBJ_$(f)))) $(WIDE_OBJ:%=$(B)/wide/%.d) \
         $(call objects,$(MAINS) $(wildcard src/*/*_test.c)))

# A made list is looked at on every build (a deleted file must leave it too) and replaced only when different.
listed = @mkdir -p $(@D) && printf '%s\n' $(1) > $@.new && \
         if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi
$(B)/gen/flags: FORCE
	$(call listed,'$(shell $(CC) -v 2>&1 | grep version)' '$(COMPILE) $(OPT) $(OPT_K) $(CFLAGS) $(LDFLAGS)')
$(B)/gen/sources: FORCE
	$(call listed,$(wildcard src/*/*.c src/kern/*/*.c) $(LIBS))
$(B)/gen/kern_list.h: FORCE
	$(call listed,$(foreach i,$(GENERIC),$(K_SRC:%='KERN_FILE(%, $(i))')) $(foreach i,$(ISAS),\
	  $(patsubst %.$(i),'KERN_FILE(%, $(i))',$(filter %.$(i),$(TUNED)))))
$(B)/gen/family_list.h: FORCE
	$(call listed,$(patsubst src/model/family_%.c,'FAMILY_FILE(%)',$(wildcard src/model/family_*.c)))
# Files with records of nodes (tier/tier.h); a file's own name is what it exports.
$(B)/gen/node_list.h: FORCE
	$(call listed,$(patsubst %,'NODE_FILE(%)',$(sort $(basename $(notdir $(shell \
	  grep -l '^NODE_EXPORT' $(wildcard src/*/*.c)))))))
$(B)/gen/page.h: web/index.html tools/embed.py
	$(Q)mkdir -p $(@D); echo "  GEN  $@"; python3 tools/embed.py page web/index.html $@
FORCE:

# ---- what others wrote: compiled as it is -----------------------------------------------------------------

ifdef YYJSON
$(YYJSON)/yyjson.h $(YYJSON)/yyjson.c &: tools/fetch.py
	$(Q)python3 tools/fetch.py yyjson $(YYJSON)
$(B)/third/yyjson.o: $(YYJSON)/yyjson.c $(B)/gen/flags
	$(Q)mkdir -p $(@D); echo "  CC   $@"; \
	  $(CC) $(OPT) -g $(SANF) $(if $(SAN),-fno-sanitize=undefined) -w -c -o $@ $<
endif
# cargo keeps the old library until the new one is whole, so an interrupted build must not remove it.
.PRECIOUS: $(GUIDE)
$(GUIDE): guide/Cargo.toml guide/Cargo.lock $(wildcard guide/src/*.rs)
	$(Q)echo "  RUST $@: the first time takes minutes"; \
	  sh tools/cargo.sh build --release --locked --manifest-path guide/Cargo.toml --target-dir $(D)/guide \
	    $(if $(TRIPLE),--target $(TRIPLE))
	@touch $@

# ---- checks -----------------------------------------------------------------------------------------------

# tally.sh goes on after a failure and adds up what the parts say. Tests that compared bits leave word of it for
# tools/proof.py, which ./check asks at its end.
check run-tests: export INGLE_TEST_PROVEN := $(abspath $(B))/proven
check: tests all
	$(Q)rm -rf $(B)/proven && mkdir -p $(B)/proven
	$(Q)CC="$(CC)" sh tools/tally.sh check \
	  'python3 tools/layers.py --self-test' 'python3 tools/layers.py' \
	  'python3 tools/tidy.py --self-test' 'python3 tools/tidy.py --objects $(B)' \
	  'python3 tools/proof.py --self-test' $(RUN_TESTS)
run-tests: tests
	$(Q)rm -rf $(B)/proven && mkdir -p $(B)/proven
	$(Q)sh tools/tally.sh "$(notdir $(B))" $(RUN_TESTS)
check-full: check check-torture check-clang check-asan check-ubsan check-tsan check-arm64 check-wide \
            check-templates check-tokenizers check-kill
# Every place, and the sweeps; `check` does a part of them.
check-torture: $(TORTURE)
	$(Q)sh tools/tally.sh "$@" '$(abspath $(TORTURE)) $(B)/tiny'
check-clang:
	$(MAKE) run-tests all CC=clang B=$(B)-clang D=$(D)
# The unit tests and the kernels again, each under a sanitizer.
sanitized = $(MAKE) run-tests B=$(B)-$(1) D=$(D) SAN=$(2)
check-asan: export ASAN_OPTIONS ?= detect_leaks=1:abort_on_error=0
check-asan:
	+$(call sanitized,asan,address)
check-ubsan:
	+$(call sanitized,ubsan,undefined)
check-tsan:
	+$(call sanitized,tsan,thread)
# Comparisons with the Python packages that fetch more than ./check does. It makes the environment they run in.
PYTHON ?= $(B)/venv/bin/python
python_text = @test -x $(PYTHON) || { echo "no $(PYTHON): run ./check once, or give PYTHON=" >&2; exit 1; }; \
  for t in $(1); do python3 tools/fetch.py $$t >/dev/null || exit 1; done; \
  INGLE_BUILD=$(abspath $(B)) INGLE_DEPS=$(abspath $(D)) INGLE_TEXT_ALL=1 $(PYTHON) -m pytest -q $(2)
fetch_tokenizers = for t in $(1); do python3 tools/fetch.py tokenizer $$t >/dev/null || exit 1; done
check-templates: all
	$(Q)$(call fetch_tokenizers,gemma3 qwen3)
	$(call python_text,model vocabularies,tests/text/test_real_templates.py)
check-tokenizers: all
	$(Q)$(call fetch_tokenizers,gemma3 qwen3 llama3 llama2 gemma2 deepseek_v3 gptoss tekken mistral)
	$(call python_text,model vocabularies,tests/text/test_json.py)
# Claims of tiers l1 and l2, each with the test that compares bits, and nothing else of ./check.
check-tiers: all $(CHECK_KERN) $(B)/test_engine
	+$(Q)$(MAKE) --no-print-directory -f tools/golden/dump.mk dump B=$(B) D=$(D)
	$(Q)rm -rf $(B)/proven && mkdir -p $(B)/proven && export INGLE_TEST_PROVEN=$(abspath $(B))/proven \
	  INGLE_PROGRAM=$(abspath $(B))/ingle && sh tools/tally.sh "$@" '$(abspath $(CHECK_KERN))' \
	  '$(abspath $(B))/test_engine' '$(PYTHON) -m pytest -q tests/parity tests/tiers' 'python3 tools/proof.py $(B)'
# Downloads are killed at a hundred random moments, twice.
check-kill: all
	$(Q)INGLE_TEST_KILLS=100 INGLE_PROGRAM=$(abspath $(B))/ingle $(B)/venv/bin/python -m pytest -q \
	  tests/e2e/test_get.py -k "kill or fails_once"
# The unit tests and the kernels on 64-bit ARM: built here, run by qemu. Rust's halves must be of one version, so
# its compiler is the distribution's too.
ARM64 := $(B)-arm64
SYS    = $(abspath $(ARM64))/sys
check-arm64:
	$(Q)sh tools/arm64.sh $(SYS)
	+$(Q)PKG_CONFIG_SYSROOT_DIR=$(SYS)/root PKG_CONFIG_LIBDIR=$(SYS)/root/usr/lib/aarch64-linux-gnu/pkgconfig \
	  QEMU_LD_PREFIX=$(SYS)/root INGLE_TEST_EMU=qemu-aarch64 \
	  RUSTC=/usr/bin/rustc RUSTFLAGS="--sysroot $(SYS)/rust" IG_CARGO=/usr/bin/cargo \
	  $(MAKE) run-tests B=$(ARM64) D=$(ARM64) SAN= CC="aarch64-linux-gnu-gcc --sysroot=$(SYS)/root" \
	  TRIPLE=aarch64-unknown-linux-gnu EMU=qemu-aarch64
# The kernels for AVX-512, its VNNI and AVX-VNNI on a machine with AVX2: one that has them runs the real ones in check.
check-wide: $(B)/check_wide
	$(Q)sh tools/tally.sh "$@" '$(abspath $(B))/check_wide'
# Each door for MINUTES with clang's fuzzer; FUZZ="gguf json" names some. A crash is kept beside the program, for a
# corpus and a fix; so is what was learnt, for the next run.
MINUTES ?= 1
fuzz:
	$(MAKE) fuzz-run B=$(B)-fuzz D=$(D) CC=clang SAN=fuzzer-no-link,address,undefined
fuzz-run: $(FUZZERS)
	$(Q)for f in $(FUZZ); do mkdir -p $(B)/corpus-$$f; dict=tests/fuzz/$$f.dict; \
	  $(B)/fuzz_$$f -max_total_time=$$(($(MINUTES) * 60)) -timeout=25 -rss_limit_mb=3000 -print_final_stats=1 \
	    $$([ ! -f $$dict ] || echo -dict=$$dict) -artifact_prefix=$(B)/$$f- \
	    $(B)/corpus-$$f tests/fuzz/corpus-$$f || exit 1; done

layers:
	$(Q)python3 tools/layers.py --self-test && python3 tools/layers.py
tidy: tests all
	$(Q)python3 tools/tidy.py --self-test && python3 tools/tidy.py --objects $(B)

# Timings: printed, never judged.
bench: $(B)/ingle
	$< bench $(MODEL)
bench-kern: $(B)/check_speed
	$< $(if $(CSV),--csv) $(KERN)

include tools/golden/l1/l1.mk

# ---- the rest ---------------------------------------------------------------------------------------------

install: $(B)/ingle
	install -D -m 755 $< $(DESTDIR)$(PREFIX)/bin/ingle

# One entry an object, as clangd and clang-tidy read it. {} because a list must not end in a comma.
entry = {"directory":"$(CURDIR)","file":"$(1)","command":"$(COMPILE) $(2) $(CFLAGS) -c $(1)"},
compile_commands.json: FORCE
	$(file >$@.new,[$(foreach s,$(filter-out $(KERNELS),$(wildcard src/*/*.c)),$(call entry,$(s),$(OPT))))
	$(foreach i,$(ISAS),$(foreach s,$(if $(filter $(i),$(GENERIC)),$(KERNELS)) $(wildcard src/kern/tuned/*.$(i).c),\
	  $(file >>$@.new,$(call entry,$(s),$(call k_flags,$(i))))))
	$(file >>$@.new,{}])
	@mv $@.new $@

clean:
	rm -rf $(B) $(B)-clang $(B)-asan $(B)-ubsan $(B)-tsan $(B)-fuzz $(B)-arm64 compile_commands.json

help:
	@sed -n 's/^##/ /p' $(firstword $(MAKEFILE_LIST)) tools/golden/l1/l1.mk
## all          the program, $(B)/ingle
## tests        the unit test programs and check_kern, not run
## check        layers, tidy, unit tests, kernels: minutes
## check-full   check, then again with clang and under the three sanitizers, then the rest
## check-templates   real chat templates against the hashes of what transformers makes of them
## check-tokenizers  every tokenizer that can be had against the Hugging Face package: ten minutes
## check-kill   downloads killed at a hundred random moments, and what the next start makes of it
## check-torture   every allocation and every call on a file fails once; `check` does a sample
## check-asan   unit tests and kernels under AddressSanitizer; -ubsan, -tsan likewise
## check-tiers  every claim of tier l1 or l2 and the test that compares its bits, in this run
## check-arm64  unit tests and kernels for 64-bit ARM under qemu
## check-wide   kernels for AVX-512 and VNNI, their instructions made out of AVX2's
## fuzz         every tests/fuzz/fuzz_*.c for MINUTES (1) each, with clang; FUZZ="gguf json": these
## bench        ingle bench MODEL=path
## bench-kern   time kernels: GMAC/s, cycles, share of peak; KERN="--all q4_1": also those not chosen; CSV=1
## layers       who may include whom
## tidy         names, banned calls, comments, dead files
## install      to PREFIX (/usr/local), under DESTDIR
## compile_commands.json   for clangd
## clean        remove what was built
