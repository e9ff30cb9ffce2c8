package abi

import (
	"reflect"
	"structs"
	"testing"

	"ration/check/expect"
)

const cacheLine = 64

// Words that different processes write must not share a cache line, or writers
// slow each other for nothing.
func TestHotWordsHaveTheirOwnLines(t *testing.T) {
	account := reflect.TypeFor[Account]()
	header := reflect.TypeFor[Header]()
	device := reflect.TypeFor[Device]()
	for _, c := range []struct {
		t    reflect.Type
		a, b string
	}{
		{account, "Used", "Done"}, // owner, everybody
		{account, "Phase", "Done"},
		{device, "LedgerWord", "Peak"}, // every charge, some
		{device, "LedgerWord", "ContextCost"},
		{header, "State", "Ticket"},
		{header, "Ticket", "RefusalNext"},
		{header, "RefusalNext", "Counters"},
		{header, "Counters", "HostPIDLock"},
	} {
		expect.True(t, line(c.t, c.a) != line(c.t, c.b), c.t.Name(), ".", c.a, c.b, "share a cache line")
	}
	// What a reader of the figures needs is on one line while the account is idle.
	expect.Equal(t, line(account, "Phase"), line(account, "A"), "Account.Phase and A are on two cache lines")
}

func line(t reflect.Type, field string) uintptr {
	f, ok := t.FieldByName(field)
	if !ok {
		panic(field)
	}
	return f.Offset / cacheLine
}

func TestAlignment(t *testing.T) {
	region := reflect.TypeFor[Region]()
	for i := range region.NumField() {
		f := region.Field(i)
		expect.True(t, f.Offset%PageSize == 0 || f.Name == "Compute", "Region.", f.Name, "begins at", f.Offset, "not on a page")
	}
	expect.Equal(t, region.Size()%PageSize, 0, "a region has", region.Size(), "bytes, not whole pages")
	for _, typ := range []reflect.Type{reflect.TypeFor[Account](), reflect.TypeFor[Slot](), reflect.TypeFor[Device](), reflect.TypeFor[Refusal]()} {
		expect.Equal(t, typ.Size()%cacheLine, 0, typ.Name(), "has", typ.Size(), "bytes, not whole cache lines")
	}
	expect.True(t, reflect.TypeFor[Limits]().Size() == PageSize && reflect.TypeFor[Header]().Size() == PageSize,
		"Header and Limits are a page each")
}

func TestCapacity(t *testing.T) {
	expect.True(t, Slots <= 1<<WordSlotBits, Slots, "slots do not fit", WordSlotBits, "bits")
	expect.True(t, DoneRefresh < 1<<WordSeqBits, "an owner rewrites Done too late: the short sequence has wrapped")
}

// A structure without the mark may be laid out as the compiler likes.
func TestEveryStructureHasTheHostsLayout(t *testing.T) {
	mark, seen := reflect.TypeFor[structs.HostLayout](), map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Array {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == mark || seen[typ] {
			return
		}
		seen[typ] = true
		expect.Equal(t, typ.Field(0).Type, mark, typ.Name(), "does not begin with structs.HostLayout")
		for f := range typ.Fields() {
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[Region]())
}
