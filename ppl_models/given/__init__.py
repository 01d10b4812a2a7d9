"""What users give: arguments, arrays, labels, sparse rows and data frames, read and checked."""
