/* The measurement (shim/PROTOCOLS.md): what the driver took, by its own count, while other threads
 * allocate.
 *
 * WORKERS allocate and free one unit OPS times. MAKERS make a context of two units whose cost is not known, which the
 * driver takes one after the other; it is measured afterwards, and undone where the limit has no room for it. Meanwhile
 * the driver takes one unit by itself (OWN), and may give it back, and a reader compares the driver's count with ours READS
 * times. At the end a last reading is due, when nothing else runs: then what is charged is what the driver has.
 *
 * All of them are threads of one process: its death ends all of them, and what they hold is then the reaper's
 * (docs/protocols.md, *The ledger*). A thread that is stopped is one that the search does not run. */

#ifndef WORKERS
#define WORKERS 1
#endif
#ifndef MAKERS
#define MAKERS 1
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef READS
#define READS 1
#endif
#ifndef LIMIT
#define LIMIT 5
#endif
#ifndef OWN
#define OWN 1	/* whether the driver takes a unit by itself */
#endif
#ifndef LENT
#define LENT 0	/* units that were exported and released here, and that a descriptor keeps: it is closed, or this process takes them over as importer */
#endif
#ifndef CONFIRMED
#define CONFIRMED 0	/* whether an exact measurement is final: not if the driver takes something by itself meanwhile */
#endif
#ifdef LENT_IN_BOUNDS
#define OUTSIDE 0
#else
#define OUTSIDE lent
#endif
/* With TURNS makers take turns where those that are under way and one more could exceed the limit: with nothing else beside them, it is
 * exceeded by one of them at most. Without, any number may be under way: a maker that does not move is passed over. */
#if defined(CHARGE_APART) || defined(CLAIMS_SINCE)
#define APART	/* the job is asked with the lock given back */
#endif

short charged = LENT;		/* in the ledger: all kinds */
short lent = LENT;		/* of that, lent */
short unlisted = LENT;		/* what the device has for no process */
short driver;			/* what the driver has for this process */
short own, own_max;		/* of that, what it has taken by itself, and the most it had */
short overhead;			/* what is charged for that */
short corrected;		/* all that was ever added to it, or returned */
short unmeasured;		/* what makers have made, and neither charged nor undone */
short unconfirmed;		/* charged for a context by a reading that was not exact */
bool imported = LENT;		/* this process has imported what it lent, and so may take it over */

/* Sums that only grow, in units: asked for, surely the driver's, about to go back, and back. */
short added = LENT, arrived = LENT, leaving, returned;

byte making;			/* makers that are under way */
byte turns;			/* makers that have taken their turn, and not left */
#ifdef APART
byte measured;			/* how many of them have measured */
short undecided;		/* what they claimed, and have neither charged nor undone */
#endif
short read_device, read_counted, read_reported; /* before the last reading: the device's bytes, all that was ever charged or returned; and the driver's count */
bool settled;			/* which was exact, and the same as the one before it */
bool locked;
byte running;

#define lock()   atomic { !locked -> locked = true }
#define unlock() locked = false

inline check()
{
	assert(charged - overhead <= LIMIT);					/* only overhead may exceed the limit */
	assert(driver + unlisted <= charged + unmeasured + own_max)		/* nothing in use was returned */
}

#define EXACT (added1 - returned0 == arrived0 - leaving1)

/* The order of the reads is what makes bounds of them: whatever the other threads do meanwhile, of what was charged the
 * driver had at least arrived0 - leaving1 when it was asked, and at most added1 - returned0. */
inline read_driver()
{
#ifdef COUNTED_AFTER
	reported = driver;
	returned0 = returned;
	arrived0 = arrived;
#else
	returned0 = returned;
	arrived0 = arrived;
	reported = driver;
#endif
	added1 = added - OUTSIDE;						/* the driver does not list lent units with this process */
	leaving1 = leaving + OUTSIDE
}

proctype worker()
{
	byte n = 0;
	bool ok;
	do
	:: n < OPS ->
		n++;
		d_step { ok = charged + 1 <= LIMIT; if :: ok -> charged++ :: else fi };
		if
		:: !ok -> break
		:: else
		fi;
#ifdef ARRIVED_EARLY
		arrived++;
#endif
#ifndef ADDED_LATE
		added++;
#endif
		d_step { driver++; check() };
#ifdef ADDED_LATE
		added++;
#endif
#ifndef ARRIVED_EARLY
		arrived++;
#endif
#ifndef LEAVING_LATE
		leaving++;
#endif
#ifdef RETURNED_EARLY
		returned++;
#endif
		driver--;
#ifdef LEAVING_LATE
		leaving++;
#endif
		d_step { charged--; check() };
#ifndef RETURNED_EARLY
		returned++
#endif
	:: else -> break
	od;
	running--
}

/* A maker may measure units of others, too, that are still making theirs: it claims them, and the others find them counted. If it is
 * refused, what it undoes is only its own. So the job is asked with the lock held: nobody measures beside a claim that may yet be
 * refused. It takes three makers to see why counting such claims is not enough, unless all are counted (CLAIMS_SINCE): the first claims
 * what the second has made, the second is refused and undoes it, and the third, which began after the first had measured, finds its own
 * units counted. */
proctype maker()
{
	short returned0, arrived0, added1, leaving1, reported, more;
	bool ok, imports;
#ifdef APART
	byte before;
#endif
#ifdef TURNS
	lock();
#ifndef NO_WAIT
	do
	:: turns > 0 && charged + 2 * turns + 2 > LIMIT -> unlock(); turns == 0 || charged + 2 * turns + 2 <= LIMIT; lock()
	:: else -> break
	od;
#endif
	turns++;
	unlock();
#endif
	lock();
#ifndef NO_GATE
	making++;
#endif
#ifdef APART
	before = measured;
#endif
	imports = imported;
	unlock();
	d_step { driver++; unmeasured++ };
	d_step { driver++; unmeasured++ };
#ifdef TURNS
	assert(driver <= LIMIT + 2);
#endif
	lock();
	read_driver();
#ifdef CHARGE_LEAST
	more = reported - (added1 - returned0) - overhead;
#else
	more = reported - (arrived0 - leaving1) - overhead;
#endif
#ifdef CLAIMS_SINCE
	if :: before != measured -> more = more + undecided :: else fi;
#endif
#ifdef IMPORTS_EXACT
	imports = false;
#elif defined(IMPORTS_AFTER)
	imports = imported;
#else
	imports = imports || imported;
#endif
	if :: more < 0 -> more = 0 :: else fi;
	d_step { added = added + more; arrived = arrived + more };
#ifdef APART
	measured++;
	undecided = undecided + more;
	unlock();
#endif
	d_step { ok = charged + more <= LIMIT; if :: ok -> charged = charged + more; unmeasured = unmeasured - 2 :: else fi };
#ifdef APART
	lock();
	undecided = undecided - more;
#endif
	if
	:: ok -> if :: CONFIRMED && EXACT && making == 1 && !imports :: else -> unconfirmed = unconfirmed + more fi
	:: else ->
		leaving = leaving + more;
#if defined(TURNS) && defined(LEAVE_EARLY)
		turns--;
#endif
		unlock();
		d_step { driver = driver - 2; unmeasured = unmeasured - 2 };
		returned = returned + more;
		lock()
	fi;
#ifndef NO_GATE
	making--;
#endif
#if defined(TURNS) && !defined(LEAVE_EARLY)
	turns--;
#endif
	unlock();
	d_step { check(); running-- }
}

proctype own_growth()
{
	d_step { driver++; own++; own_max++ };
	if
	:: d_step { driver--; own-- }
	:: skip
	fi;
	running--
}

proctype descriptor()
{
	if
	:: d_step { unlisted = 0 }
	:: d_step { unlisted = 0; driver = driver + LENT; own = own + LENT; own_max = own_max + LENT };
		if
		:: d_step { driver = driver - LENT; own = own - LENT };
			imported = false
		:: skip
		fi
	fi;
	running--
}

/* Under the lock, and with nothing being made. */
inline sync_overhead()
{
	seen = unlisted;
	imports = imported;
	read_driver();
	more = reported - (added1 - returned0) - overhead;
	less = arrived0 - leaving1 + overhead - reported;
	if
	:: more > 0 ->
		d_step { overhead = overhead + more; corrected = corrected + more; charged = charged + more; assert(overhead <= own_max); check() }
	:: more <= 0 && less > 0 ->
		/* Overhead first: it is what comes and goes by itself. */
		d_step {
			more = (less < overhead -> less : overhead);
			overhead = overhead - more;
			corrected = corrected + more;
			charged = charged - more;
			less = less - more;
			more = (less < unconfirmed -> less : unconfirmed);
			unconfirmed = unconfirmed - more;
			charged = charged - more;
			leaving = leaving + more;
			returned = returned + more;
			more = 0;
			check()
		}
	:: else
	fi;
	d_step {
		if
		:: lent > seen ->
			more = lent - seen;
			lent = seen;
			leaving = leaving + more;
			charged = charged - more;
			returned = returned + more;
			check()
		:: else
		fi;
		/* Imported units that were charged to a context are still there. */
#ifdef IMPORTS_CONFIRM
		imports = false;
#else
		imports = imports || imported;
#endif
		if :: CONFIRMED && EXACT && !imports -> unconfirmed = 0 :: else fi;
		more = 0; less = 0; seen = 0; imports = false
	}
}

/* A reading that is due is left out if the device's bytes are those from before the last one, this process has neither been charged nor
 * returned anything since, and the last one was exact and the same as the one before it: the driver may take something between the two
 * counts of a reading, and give it back. */
#ifdef UNCHANGED_ONCE
#define TWICE true
#else
#define TWICE (now_device == read_device && now_counted == read_counted && reported == read_reported)
#endif
#ifdef UNCHANGED_COUNT
#define SAME_COUNT true
#else
#define SAME_COUNT (now_counted == read_counted)
#endif

inline due()
{
#ifdef UNCHANGED_BALANCE
	now_counted = charged;
#else
	now_counted = added + returned + corrected;
#endif
	now_device = driver + unlisted;
	if
	:: settled && now_device == read_device && SAME_COUNT && !lent
	:: else ->
		settled = false;
		if
		:: making == 0 ->
			sync_overhead();
			settled = EXACT && TWICE;
			read_reported = reported
		:: else
		fi;
		read_device = now_device;
		read_counted = now_counted
	fi;
	d_step { now_device = 0; now_counted = 0; returned0 = 0; arrived0 = 0; added1 = 0; leaving1 = 0; reported = 0 }
}

proctype reader()
{
	short returned0, arrived0, added1, leaving1, reported, more, less, seen, now_device, now_counted;
	bool imports;
	byte n = 0;
	do
	:: n < READS ->
		n++;
		lock();
		due();
		unlock()
	:: else -> break
	od;
	running--
}

init {
	short returned0, arrived0, added1, leaving1, reported, more, less, seen, now_device, now_counted;
	bool imports;
	byte n;
	atomic {
		running = WORKERS + MAKERS + OWN + LENT + 1;
		n = 0;
		do :: n < WORKERS -> run worker(); n++ :: else -> break od
		n = 0;
		do :: n < MAKERS -> run maker(); n++ :: else -> break od
		if :: OWN -> run own_growth() :: else fi;
		if :: LENT -> run descriptor() :: else fi;
		run reader()
	}
	running == 0;
	atomic {
		due();
		assert(unmeasured == 0);
		assert(charged == driver + unlisted)
	}
}
