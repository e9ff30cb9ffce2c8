/* Lent memory (docs/protocols.md): exported memory outlives its maker while there is a descriptor of it.
 *
 * A maker charges two units, exports one, and may be killed between any two steps (OR_DIE). As soon as the program has the
 * descriptor it may be with another process: a holder closes it at any time. REAPERS return what a dead maker held; each may
 * be killed too, and a last one comes when all others have ended. A reaper cannot always ask the kernel (BLIND); then it
 * returns nothing while the holder may live.
 *
 * With EARLIER the maker has exported the other unit before, by a descriptor of another file, as a dma-buf's file is
 * another than that of a handle.
 *
 * With IMPORTER the holder imports the memory before it closes the descriptor, and says so in the region. When it takes a
 * reading, it is charged for what the driver lists with it, and says it no longer. It need not take any.
 *
 * With IPC, which needs IMPORTER, the maker exports by an IPC handle: there is no descriptor, and the driver opens the
 * handle only while the maker has the memory. The maker may free it before it ends. It then returns the unit if no
 * importer has said that it has imported anything, or if the driver lists no process with memory that it is not charged for.
 *
 * With RELEASE, which needs IMPORTER, the maker releases the memory before it ends. It then returns the unit when no
 * descriptor is open, and by the same words about importers.
 *
 * The unit that was exported is the maker's while the maker lives, and the device's while the descriptor is open or it is
 * imported. */

#ifndef REAPERS
#define REAPERS 2
#endif

#ifndef EARLIER
#define EARLIER 0
#endif

#define HELD 2

byte charged = HELD;		/* in the job's ledger */
byte exported = EARLIER;	/* Account.Exported */
bool lock_shown = EARLIER;	/* Account.ExportLock is set */
bool files;			/* Account.Exported says that the descriptors are of different files */
bool earlier = EARLIER;		/* the descriptor of the earlier export is open, and locked */
bool locked;			/* the descriptor is locked: the kernel drops it with the last duplicate */
bool made;			/* the driver has made the descriptor */
bool open;			/* there is a duplicate of it */
bool given;			/* the program has it, so that another process may */
bool dead;			/* the maker */
bool holding = true;		/* the holder lives */
bool free;			/* the slot is free */
byte running;
bool imported;			/* the holder has a handle */
bool marked;			/* the holder has locked the byte of the region */
bool own;			/* the holder is charged for it */
bool freed;			/* the maker has freed it, and lives */

/* The promise: what the device has is charged. */
inline check() { assert(charged + own >= (dead -> (open || imported) + earlier : (freed -> HELD - 1 + (open || imported) : HELD))) }

/* The kernel closes the maker's own descriptor when the maker dies. */
#define OR_DIE :: d_step { dead = true; if :: made && !given -> open = false; locked = false :: else fi }; goto ended

#ifdef IPC
active proctype maker()
{
	bool kept;
	if
	:: exported = 1 OR_DIE fi; if
#ifdef SHOWN_LATE
	:: given = true OR_DIE fi; if
	:: lock_shown = true OR_DIE fi; if
#else
	:: lock_shown = true OR_DIE fi; if
	:: given = true OR_DIE fi; if
#endif
#ifdef LOOK_FIRST
	:: kept = marked OR_DIE fi; if
	:: freed = true OR_DIE fi;
#else
	:: freed = true OR_DIE fi; if
	:: kept = marked OR_DIE fi;
#endif
	do
#ifdef RETURN_AT_ONCE
	:: kept = false; break
#else
	:: kept -> if :: kept = imported && !own OR_DIE fi
#endif
	:: !kept -> break
	:: kept -> if :: kept = marked OR_DIE fi
	:: dead = true; goto ended
	od;
	if
	:: d_step { charged--; exported--; check() } OR_DIE fi;
	dead = true;
ended:	skip
}
#else
active proctype maker()
{
	bool unlisted, kept;
	if
#ifdef EXPORT_LATE
	:: d_step { made = true; open = true } OR_DIE fi; if
#else
	:: exported = EARLIER + 1 OR_DIE fi; if
	:: d_step { made = true; open = true } OR_DIE fi; if
#endif
#ifdef LOCK_LATE
	:: given = true OR_DIE fi; if
	:: locked = open OR_DIE fi; if
	:: lock_shown = true OR_DIE fi; if
#else
	:: locked = true OR_DIE fi; if
#ifndef FIRST_FILE
	:: files = EARLIER OR_DIE fi; if
#endif
#ifdef SHOWN_LATE
	:: given = true OR_DIE fi; if
	:: lock_shown = true OR_DIE fi; if
#else
	:: lock_shown = true OR_DIE fi; if
	:: given = true OR_DIE fi; if
#endif
#endif
#ifdef EXPORT_LATE
	:: exported = 1 OR_DIE fi; if
#endif
#ifdef RELEASE
	:: freed = true OR_DIE fi;
	do				/* a reading: the device and the list cannot be read at one instant */
	::
#ifdef IMPORTER_FIRST
	   if :: kept = marked && imported && !own && !open OR_DIE fi;
	   if :: unlisted = open OR_DIE fi;
#else
	   if :: unlisted = open OR_DIE fi;
	   if :: kept = marked OR_DIE fi;
#ifdef RETURN_UNLISTED
	   kept = false;
#endif
	   if :: kept = kept && imported && !own && !open OR_DIE fi;
#endif
	   if
	   :: !unlisted && !kept -> break
	   :: else
	   fi
	:: dead = true; goto ended
	od;
	if
	:: d_step { charged--; exported--; check() } OR_DIE fi; if
#endif
	:: d_step { dead = true; if :: made && !given -> open = false; locked = false :: else fi }
	fi;
ended:	skip
}
#endif

#ifdef IMPORTER
/* What the driver lists with the importer. */
#define LISTED (imported && (dead || freed) && !open)
/* Both questions and the reading are apart. */
inline reading()
{
	bool ended;
#ifdef ASK_AFTER_READING
	own = LISTED;
	ended = dead && !open;
#else
	ended = dead && !open;
#ifndef DROP_FIRST
	own = LISTED;
#endif
#endif
	if :: ended -> marked = false :: else fi;
#ifdef DROP_FIRST
	own = LISTED
#endif
}

inline import()
{
#if !defined(UNMARKED) && !defined(MARK_LATE)
	given -> marked = true;
#endif
#ifdef IPC
	if
	:: d_step { given && !dead && !freed -> imported = true }
	:: dead || freed
	fi;
#else
	d_step { given -> imported = true };
#endif
#ifdef MARK_LATE
	marked = true;
#endif
	d_step { open = false; locked = false };
	do
	:: reading()
	:: break
	od;
	imported = false;
	own = false;
	marked = false
}
#endif

/* Another process, which has the descriptor from the moment that the program had it. It may close it, and ends. */
active proctype holder()
{
#ifdef IMPORTER
	if
	:: import()
	:: dead
	fi;
#endif
	if
	:: d_step { earlier -> earlier = false }
	:: true
	fi;
	if
	:: d_step { given && open -> open = false; locked = false }
	:: dead	/* it ends without closing: the kernel closes it */
	fi;
	d_step { if :: given -> open = false; locked = false :: else fi; earlier = false; holding = false }
}

byte keep[REAPERS + 1];

/* What a reaper finds out. One that cannot ask keeps it while a neighbour lives. */
inline ask_descriptors(i)
{
	d_step {
		if
		:: !lock_shown -> keep[i] = 0
		:: else ->
			if
#ifdef BLIND
#ifdef UNKNOWN_IS_CLOSED
			:: true -> keep[i] = 0
#else
			:: true -> keep[i] = (holding -> exported : 0)
#endif
#else
			:: true -> keep[i] = ((files || !EARLIER) && locked || earlier -> exported : keep[i])
#endif
			fi
		fi
	}
}

inline ask_importers(i)
{
#if defined(IMPORTER) && !defined(BLIND)
	d_step { if :: keep[i] == 0 && marked && lock_shown -> keep[i] = exported :: else fi }
#else
	skip
#endif
}

inline ask(i)
{
	keep[i] = 0;
#ifdef IMPORTERS_FIRST
	ask_importers(i);
	ask_descriptors(i)
#else
	ask_descriptors(i);
	ask_importers(i)
#endif
}

/* A reaper that dies leaves the words as they are, and the next one begins anew. */
#define MAY_DIE if :: true :: mortal -> goto out fi

inline reap(i)
{
#ifdef ASK_FIRST
	ask(i);
#endif
	dead;			/* and condemned, so that its owner changes nothing any more: models/ledger.pml */
	MAY_DIE;
#ifndef ASK_FIRST
	ask(i);
#endif
	MAY_DIE;
	d_step {		/* one swap, from a value with a sequence: models/ledger.pml */
		if
		:: !free && charged > keep[i] -> charged = keep[i]
		:: else
		fi;
		check()
	};
	MAY_DIE;
	d_step {
		if
#ifdef FREE_ALWAYS
		:: !free -> free = true; charged = 0
#else
		:: !free && charged == 0 -> free = true
#endif
		:: else
		fi;
		check()
	}
}

proctype reaper(byte i)
{
	bool mortal = true;
	reap(i);
out:	running--
}

init
{
	byte i;
	bool mortal;
	atomic {
		running = REAPERS;
		for (i : 0 .. REAPERS - 1) { run reaper(i) }
	}
	(running == 0 && dead && !holding);
	reap(REAPERS);
out:	assert(charged == 0 && free)	/* without descriptors everything is returned */
}
