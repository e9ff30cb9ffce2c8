//go:build !race

#include "textflag.h"

// func storeRelease(p *uint64, v uint64)
// A plain store: amd64 never moves a store before an earlier load or store.
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), BX
	MOVQ BX, (AX)
	RET
