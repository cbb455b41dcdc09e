# The Makefile and three more programs, which the product does not need:
#     make -f tools/golden/dump.mk dump [B=build] [SAN=address]
include Makefile

.PHONY: dump
dump: $(B)/dump_ingle $(B)/dump_l1 $(B)/envelope
$(B)/dump_ingle $(B)/dump_l1 $(B)/envelope: $(B)/%: tools/golden/%.c tools/golden/dump_common.h $(call linked,engine) $(B)/gen/sources
	@echo "  LD   $@"; $(COMPILE) $(OPT) $(CFLAGS) $(LDFLAGS) -o $@ $< $(filter %.o,$^) -Wl,--as-needed $(LIBS)
