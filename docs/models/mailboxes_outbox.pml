/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mailboxes.pml in the other layout: each rank has an outbox, which all others read.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DONE_HALF     there is one half
 *   -DNO_HEADERS   in a call of which one rank alone has data the others send nothing
 *   -DNO_SWEEP     nothing is swept
 *   -DOTHER_SWEEP  the half that has just been read is swept
 */
#define OUTBOX
#include "mailboxes.pml"
