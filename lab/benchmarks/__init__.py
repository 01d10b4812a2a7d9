"""Programs that measure: time, memory, accuracy beside other libraries."""
