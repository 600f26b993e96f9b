"""Sequences, batches and the step that advances all of them. Knows tokens and logits, not JSON.

Start with `step` (the plan and the record), `sequence`, and `scheduler` from `Scheduler.step` on.
Then, by topic:

    who gets cells    admission, cell_order, constraint_queue, prompt_cache; in main memory and on
                      the disk: offloading, prompt_store, disk_cache (with structures/prompt_files)
    who takes part    turns
    drafts            drafting, model_drafting, offers, policy; the speculators:
                      guarded_speculator, observed_engine
    the batch         batching, prompt_order, warm_up
    after the decode  commit, context_shift
    the record        readers (counts, events, sums)
    beside that       slot_actions, widths
"""
