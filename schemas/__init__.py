"""The nouns: records, Arrow tables, the job and the error tree. Imports nothing of ours."""
